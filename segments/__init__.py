"""Segment brokers and the controller: everything that stores, serves and rearranges the segments of topics.

Decides who owns a segment, what it holds and who reads it. Seven rooms, each of which imports only from those to its
left; broker and controller do not know each other.

    layout | ledger  <-  log  <-  subscription  <-  owner  <-  broker          layout  <-  controller

To follow one send, begin with `segments.broker.broker_service`, then `segments.owner.segment`, then
`segments.log.sends.pipeline`. To follow a split, begin at `segments.controller.layout_changes`.
"""
