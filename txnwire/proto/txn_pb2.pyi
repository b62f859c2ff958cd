from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_UNSPECIFIED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_ARGUMENT: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNAUTHORIZED: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_ALLOWED: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_SUBSCRIPTION_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_TXN_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TXN_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_EXPIRED_TRANSACTION: _ClassVar[ErrorCode]
    ERROR_CODE_TXN_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_SEQUENCE_GAP: _ClassVar[ErrorCode]
    ERROR_CODE_WOULD_BLOCK: _ClassVar[ErrorCode]
    ERROR_CODE_UNDECODABLE_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_TRIMMED: _ClassVar[ErrorCode]
    ERROR_CODE_NAME_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_OWNER: _ClassVar[ErrorCode]
    ERROR_CODE_SEGMENT_SEALED: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_OVERLOADED: _ClassVar[ErrorCode]
    ERROR_CODE_CONNECTION_LOST: _ClassVar[ErrorCode]
    ERROR_CODE_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_OUTCOME_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_CORRUPT: _ClassVar[ErrorCode]
    ERROR_CODE_INTERNAL: _ClassVar[ErrorCode]
    ERROR_CODE_TOO_MANY_NAMES: _ClassVar[ErrorCode]

class TxnState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TXN_STATE_UNSPECIFIED: _ClassVar[TxnState]
    TXN_STATE_OPEN: _ClassVar[TxnState]
    TXN_STATE_COMMITTED: _ClassVar[TxnState]
    TXN_STATE_ABORTED: _ClassVar[TxnState]

class TxnAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TXN_ACTION_COMMIT: _ClassVar[TxnAction]
    TXN_ACTION_ABORT: _ClassVar[TxnAction]

class SubscriptionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBSCRIPTION_TYPE_STREAM: _ClassVar[SubscriptionType]
    SUBSCRIPTION_TYPE_QUEUE: _ClassVar[SubscriptionType]

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_READ_COMMITTED: _ClassVar[Isolation]
    ISOLATION_READ_UNCOMMITTED: _ClassVar[Isolation]
    ISOLATION_SNAPSHOT: _ClassVar[Isolation]

class TrimmedData(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRIMMED_DATA_BY_START: _ClassVar[TrimmedData]
    TRIMMED_DATA_REFUSE: _ClassVar[TrimmedData]
    TRIMMED_DATA_SKIP: _ClassVar[TrimmedData]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]
    COMPRESSION_LZ4: _ClassVar[Compression]
ERROR_CODE_UNSPECIFIED: ErrorCode
ERROR_CODE_INVALID_ARGUMENT: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_UNAUTHORIZED: ErrorCode
ERROR_CODE_NOT_ALLOWED: ErrorCode
ERROR_CODE_TOPIC_NOT_FOUND: ErrorCode
ERROR_CODE_TOPIC_EXISTS: ErrorCode
ERROR_CODE_SUBSCRIPTION_NOT_FOUND: ErrorCode
ERROR_CODE_TXN_NOT_FOUND: ErrorCode
ERROR_CODE_INVALID_TXN_STATE: ErrorCode
ERROR_CODE_EXPIRED_TRANSACTION: ErrorCode
ERROR_CODE_TXN_CONFLICT: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_SEQUENCE_GAP: ErrorCode
ERROR_CODE_WOULD_BLOCK: ErrorCode
ERROR_CODE_UNDECODABLE_MESSAGE: ErrorCode
ERROR_CODE_DATA_TRIMMED: ErrorCode
ERROR_CODE_NAME_NOT_FOUND: ErrorCode
ERROR_CODE_NOT_OWNER: ErrorCode
ERROR_CODE_SEGMENT_SEALED: ErrorCode
ERROR_CODE_STORE_UNAVAILABLE: ErrorCode
ERROR_CODE_STORE_FULL: ErrorCode
ERROR_CODE_OVERLOADED: ErrorCode
ERROR_CODE_CONNECTION_LOST: ErrorCode
ERROR_CODE_TIMEOUT: ErrorCode
ERROR_CODE_OUTCOME_UNKNOWN: ErrorCode
ERROR_CODE_DATA_CORRUPT: ErrorCode
ERROR_CODE_INTERNAL: ErrorCode
ERROR_CODE_TOO_MANY_NAMES: ErrorCode
TXN_STATE_UNSPECIFIED: TxnState
TXN_STATE_OPEN: TxnState
TXN_STATE_COMMITTED: TxnState
TXN_STATE_ABORTED: TxnState
TXN_ACTION_COMMIT: TxnAction
TXN_ACTION_ABORT: TxnAction
SUBSCRIPTION_TYPE_STREAM: SubscriptionType
SUBSCRIPTION_TYPE_QUEUE: SubscriptionType
ISOLATION_READ_COMMITTED: Isolation
ISOLATION_READ_UNCOMMITTED: Isolation
ISOLATION_SNAPSHOT: Isolation
TRIMMED_DATA_BY_START: TrimmedData
TRIMMED_DATA_REFUSE: TrimmedData
TRIMMED_DATA_SKIP: TrimmedData
COMPRESSION_NONE: Compression
COMPRESSION_ZSTD: Compression
COMPRESSION_LZ4: Compression

class Frame(_message.Message):
    __slots__ = ("version", "commands")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, version: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    message: str
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("request_id", "error", "ok", "hello", "hello_ok", "ping", "new_txn", "new_txn_ok", "add_partition_to_txn", "add_subscription_to_txn", "end_txn", "end_txn_ok", "announce_session", "tc_client_connect", "tc_client_connect_ok", "watch_cluster", "cluster", "watch_layout", "layout", "create_topic", "list_topics", "names", "admin_request", "admin_reply", "layout_changed", "join_subscription", "assignment", "leave_subscription", "delete_topic", "delete_subscription", "take_snapshot", "take_snapshot_ok", "update_topic", "split_segment", "merge_segments", "open_producer", "open_producer_ok", "send", "send_ok", "close_producer", "producer_closed", "take_name", "take_name_ok", "subscribe", "subscribe_ok", "flow", "deliver", "ack", "rewind", "close_consumer", "consumer_closed", "end_of_segment", "segment_positions", "segment_positions_ok", "nack", "seek", "segment_cut", "segment_cut_ok", "seal_segment", "seal_segment_ok", "scan_entries", "scan_entries_ok", "register_producer", "register_producer_ok", "life")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HELLO_OK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    NEW_TXN_FIELD_NUMBER: _ClassVar[int]
    NEW_TXN_OK_FIELD_NUMBER: _ClassVar[int]
    ADD_PARTITION_TO_TXN_FIELD_NUMBER: _ClassVar[int]
    ADD_SUBSCRIPTION_TO_TXN_FIELD_NUMBER: _ClassVar[int]
    END_TXN_FIELD_NUMBER: _ClassVar[int]
    END_TXN_OK_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_SESSION_FIELD_NUMBER: _ClassVar[int]
    TC_CLIENT_CONNECT_FIELD_NUMBER: _ClassVar[int]
    TC_CLIENT_CONNECT_OK_FIELD_NUMBER: _ClassVar[int]
    WATCH_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    WATCH_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LIST_TOPICS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ADMIN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ADMIN_REPLY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_CHANGED_FIELD_NUMBER: _ClassVar[int]
    JOIN_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    DELETE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DELETE_SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAKE_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TAKE_SNAPSHOT_OK_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    SPLIT_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    MERGE_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OPEN_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    OPEN_PRODUCER_OK_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    SEND_OK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_CLOSED_FIELD_NUMBER: _ClassVar[int]
    TAKE_NAME_FIELD_NUMBER: _ClassVar[int]
    TAKE_NAME_OK_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBE_OK_FIELD_NUMBER: _ClassVar[int]
    FLOW_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REWIND_FIELD_NUMBER: _ClassVar[int]
    CLOSE_CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_CLOSED_FIELD_NUMBER: _ClassVar[int]
    END_OF_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_POSITIONS_OK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_CUT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_CUT_OK_FIELD_NUMBER: _ClassVar[int]
    SEAL_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SEAL_SEGMENT_OK_FIELD_NUMBER: _ClassVar[int]
    SCAN_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SCAN_ENTRIES_OK_FIELD_NUMBER: _ClassVar[int]
    REGISTER_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    REGISTER_PRODUCER_OK_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    error: Error
    ok: Ok
    hello: Hello
    hello_ok: HelloOk
    ping: Ping
    new_txn: NewTxn
    new_txn_ok: NewTxnOk
    add_partition_to_txn: AddPartitionToTxn
    add_subscription_to_txn: AddSubscriptionToTxn
    end_txn: EndTxn
    end_txn_ok: EndTxnOk
    announce_session: AnnounceSession
    tc_client_connect: TcClientConnect
    tc_client_connect_ok: TcClientConnectOk
    watch_cluster: WatchCluster
    cluster: Cluster
    watch_layout: WatchLayout
    layout: Layout
    create_topic: CreateTopic
    list_topics: ListTopics
    names: Names
    admin_request: AdminRequest
    admin_reply: AdminReply
    layout_changed: LayoutChanged
    join_subscription: JoinSubscription
    assignment: Assignment
    leave_subscription: LeaveSubscription
    delete_topic: DeleteTopic
    delete_subscription: DeleteSubscription
    take_snapshot: TakeSnapshot
    take_snapshot_ok: TakeSnapshotOk
    update_topic: UpdateTopic
    split_segment: SplitSegment
    merge_segments: MergeSegments
    open_producer: OpenProducer
    open_producer_ok: OpenProducerOk
    send: Send
    send_ok: SendOk
    close_producer: CloseProducer
    producer_closed: ProducerClosed
    take_name: TakeName
    take_name_ok: TakeNameOk
    subscribe: Subscribe
    subscribe_ok: SubscribeOk
    flow: Flow
    deliver: Deliver
    ack: Ack
    rewind: Rewind
    close_consumer: CloseConsumer
    consumer_closed: ConsumerClosed
    end_of_segment: EndOfSegment
    segment_positions: SegmentPositions
    segment_positions_ok: SegmentPositionsOk
    nack: Nack
    seek: Seek
    segment_cut: SegmentCut
    segment_cut_ok: SegmentCutOk
    seal_segment: SealSegment
    seal_segment_ok: SealSegmentOk
    scan_entries: ScanEntries
    scan_entries_ok: ScanEntriesOk
    register_producer: RegisterProducer
    register_producer_ok: RegisterProducerOk
    life: Life
    def __init__(self, request_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., ok: _Optional[_Union[Ok, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., hello_ok: _Optional[_Union[HelloOk, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., new_txn: _Optional[_Union[NewTxn, _Mapping]] = ..., new_txn_ok: _Optional[_Union[NewTxnOk, _Mapping]] = ..., add_partition_to_txn: _Optional[_Union[AddPartitionToTxn, _Mapping]] = ..., add_subscription_to_txn: _Optional[_Union[AddSubscriptionToTxn, _Mapping]] = ..., end_txn: _Optional[_Union[EndTxn, _Mapping]] = ..., end_txn_ok: _Optional[_Union[EndTxnOk, _Mapping]] = ..., announce_session: _Optional[_Union[AnnounceSession, _Mapping]] = ..., tc_client_connect: _Optional[_Union[TcClientConnect, _Mapping]] = ..., tc_client_connect_ok: _Optional[_Union[TcClientConnectOk, _Mapping]] = ..., watch_cluster: _Optional[_Union[WatchCluster, _Mapping]] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., watch_layout: _Optional[_Union[WatchLayout, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., create_topic: _Optional[_Union[CreateTopic, _Mapping]] = ..., list_topics: _Optional[_Union[ListTopics, _Mapping]] = ..., names: _Optional[_Union[Names, _Mapping]] = ..., admin_request: _Optional[_Union[AdminRequest, _Mapping]] = ..., admin_reply: _Optional[_Union[AdminReply, _Mapping]] = ..., layout_changed: _Optional[_Union[LayoutChanged, _Mapping]] = ..., join_subscription: _Optional[_Union[JoinSubscription, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., leave_subscription: _Optional[_Union[LeaveSubscription, _Mapping]] = ..., delete_topic: _Optional[_Union[DeleteTopic, _Mapping]] = ..., delete_subscription: _Optional[_Union[DeleteSubscription, _Mapping]] = ..., take_snapshot: _Optional[_Union[TakeSnapshot, _Mapping]] = ..., take_snapshot_ok: _Optional[_Union[TakeSnapshotOk, _Mapping]] = ..., update_topic: _Optional[_Union[UpdateTopic, _Mapping]] = ..., split_segment: _Optional[_Union[SplitSegment, _Mapping]] = ..., merge_segments: _Optional[_Union[MergeSegments, _Mapping]] = ..., open_producer: _Optional[_Union[OpenProducer, _Mapping]] = ..., open_producer_ok: _Optional[_Union[OpenProducerOk, _Mapping]] = ..., send: _Optional[_Union[Send, _Mapping]] = ..., send_ok: _Optional[_Union[SendOk, _Mapping]] = ..., close_producer: _Optional[_Union[CloseProducer, _Mapping]] = ..., producer_closed: _Optional[_Union[ProducerClosed, _Mapping]] = ..., take_name: _Optional[_Union[TakeName, _Mapping]] = ..., take_name_ok: _Optional[_Union[TakeNameOk, _Mapping]] = ..., subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., subscribe_ok: _Optional[_Union[SubscribeOk, _Mapping]] = ..., flow: _Optional[_Union[Flow, _Mapping]] = ..., deliver: _Optional[_Union[Deliver, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., rewind: _Optional[_Union[Rewind, _Mapping]] = ..., close_consumer: _Optional[_Union[CloseConsumer, _Mapping]] = ..., consumer_closed: _Optional[_Union[ConsumerClosed, _Mapping]] = ..., end_of_segment: _Optional[_Union[EndOfSegment, _Mapping]] = ..., segment_positions: _Optional[_Union[SegmentPositions, _Mapping]] = ..., segment_positions_ok: _Optional[_Union[SegmentPositionsOk, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., segment_cut: _Optional[_Union[SegmentCut, _Mapping]] = ..., segment_cut_ok: _Optional[_Union[SegmentCutOk, _Mapping]] = ..., seal_segment: _Optional[_Union[SealSegment, _Mapping]] = ..., seal_segment_ok: _Optional[_Union[SealSegmentOk, _Mapping]] = ..., scan_entries: _Optional[_Union[ScanEntries, _Mapping]] = ..., scan_entries_ok: _Optional[_Union[ScanEntriesOk, _Mapping]] = ..., register_producer: _Optional[_Union[RegisterProducer, _Mapping]] = ..., register_producer_ok: _Optional[_Union[RegisterProducerOk, _Mapping]] = ..., life: _Optional[_Union[Life, _Mapping]] = ...) -> None: ...

class Ok(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "client_name", "session_id", "token")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    client_name: str
    session_id: bytes
    token: str
    def __init__(self, protocol_version: _Optional[int] = ..., client_name: _Optional[str] = ..., session_id: _Optional[bytes] = ..., token: _Optional[str] = ...) -> None: ...

class HelloOk(_message.Message):
    __slots__ = ("protocol_version", "server_id", "roles", "incarnation")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    server_id: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    incarnation: str
    def __init__(self, protocol_version: _Optional[int] = ..., server_id: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NewTxn(_message.Message):
    __slots__ = ("tc_id", "timeout_ms", "name", "attempt", "transaction_key", "key_epoch", "key_begin", "keep_ms", "keep_newest", "known_only")
    TC_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEY_BEGIN_FIELD_NUMBER: _ClassVar[int]
    KEEP_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_NEWEST_FIELD_NUMBER: _ClassVar[int]
    KNOWN_ONLY_FIELD_NUMBER: _ClassVar[int]
    tc_id: int
    timeout_ms: int
    name: str
    attempt: bytes
    transaction_key: str
    key_epoch: int
    key_begin: int
    keep_ms: int
    keep_newest: bool
    known_only: bool
    def __init__(self, tc_id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., name: _Optional[str] = ..., attempt: _Optional[bytes] = ..., transaction_key: _Optional[str] = ..., key_epoch: _Optional[int] = ..., key_begin: _Optional[int] = ..., keep_ms: _Optional[int] = ..., keep_newest: _Optional[bool] = ..., known_only: _Optional[bool] = ...) -> None: ...

class NewTxnOk(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits", "state", "deadline_ms", "joined", "revision", "writers", "note")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    state: TxnState
    deadline_ms: int
    joined: bool
    revision: int
    writers: WriterList
    note: str
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., state: _Optional[_Union[TxnState, str]] = ..., deadline_ms: _Optional[int] = ..., joined: _Optional[bool] = ..., revision: _Optional[int] = ..., writers: _Optional[_Union[WriterList, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class AddPartitionToTxn(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits", "partitions")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    partitions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., partitions: _Optional[_Iterable[str]] = ...) -> None: ...

class AddSubscriptionToTxn(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits", "subscriptions")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    subscriptions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., subscriptions: _Optional[_Iterable[str]] = ...) -> None: ...

class WriterList(_message.Message):
    __slots__ = ("writers",)
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    writers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, writers: _Optional[_Iterable[int]] = ...) -> None: ...

class EndTxn(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits", "action", "writers", "forced", "name", "note")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    FORCED_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    action: TxnAction
    writers: WriterList
    forced: bool
    name: str
    note: str
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., action: _Optional[_Union[TxnAction, str]] = ..., writers: _Optional[_Union[WriterList, _Mapping]] = ..., forced: _Optional[bool] = ..., name: _Optional[str] = ..., note: _Optional[str] = ...) -> None: ...

class EndTxnOk(_message.Message):
    __slots__ = ("revision", "state", "writers", "note")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    revision: int
    state: TxnState
    writers: WriterList
    note: str
    def __init__(self, revision: _Optional[int] = ..., state: _Optional[_Union[TxnState, str]] = ..., writers: _Optional[_Union[WriterList, _Mapping]] = ..., note: _Optional[str] = ...) -> None: ...

class AnnounceSession(_message.Message):
    __slots__ = ("open",)
    OPEN_FIELD_NUMBER: _ClassVar[int]
    open: _containers.RepeatedCompositeFieldContainer[TxnIdBits]
    def __init__(self, open: _Optional[_Iterable[_Union[TxnIdBits, _Mapping]]] = ...) -> None: ...

class TxnIdBits(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ...) -> None: ...

class TcClientConnect(_message.Message):
    __slots__ = ("tc_id", "epoch", "transaction_key", "attempt")
    TC_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    tc_id: int
    epoch: int
    transaction_key: str
    attempt: bytes
    def __init__(self, tc_id: _Optional[int] = ..., epoch: _Optional[int] = ..., transaction_key: _Optional[str] = ..., attempt: _Optional[bytes] = ...) -> None: ...

class TcClientConnectOk(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class WatchCluster(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("coordinators", "brokers", "controller_address", "revision", "stale")
    class Coordinator(_message.Message):
        __slots__ = ("tc_id", "address")
        TC_ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        tc_id: int
        address: str
        def __init__(self, tc_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...
    class Broker(_message.Message):
        __slots__ = ("id", "address")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRESS_FIELD_NUMBER: _ClassVar[int]
        id: str
        address: str
        def __init__(self, id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...
    COORDINATORS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    coordinators: _containers.RepeatedCompositeFieldContainer[Cluster.Coordinator]
    brokers: _containers.RepeatedCompositeFieldContainer[Cluster.Broker]
    controller_address: str
    revision: int
    stale: bool
    def __init__(self, coordinators: _Optional[_Iterable[_Union[Cluster.Coordinator, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[Cluster.Broker, _Mapping]]] = ..., controller_address: _Optional[str] = ..., revision: _Optional[int] = ..., stale: _Optional[bool] = ...) -> None: ...

class WatchLayout(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("segment_id", "lo", "hi", "state", "parents", "children", "owner", "owner_address", "path")
    SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    LO_FIELD_NUMBER: _ClassVar[int]
    HI_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    OWNER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    segment_id: int
    lo: int
    hi: int
    state: str
    parents: _containers.RepeatedScalarFieldContainer[int]
    children: _containers.RepeatedScalarFieldContainer[int]
    owner: str
    owner_address: str
    path: str
    def __init__(self, segment_id: _Optional[int] = ..., lo: _Optional[int] = ..., hi: _Optional[int] = ..., state: _Optional[str] = ..., parents: _Optional[_Iterable[int]] = ..., children: _Optional[_Iterable[int]] = ..., owner: _Optional[str] = ..., owner_address: _Optional[str] = ..., path: _Optional[str] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("topic", "exists", "epoch", "segments", "revision", "lost_segment_id", "topic_revision", "life")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    LOST_SEGMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_REVISION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    exists: bool
    epoch: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    revision: int
    lost_segment_id: int
    topic_revision: int
    life: int
    def __init__(self, topic: _Optional[str] = ..., exists: _Optional[bool] = ..., epoch: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., revision: _Optional[int] = ..., lost_segment_id: _Optional[int] = ..., topic_revision: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class CreateTopic(_message.Message):
    __slots__ = ("topic", "segments", "policies_json")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    POLICIES_JSON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    segments: int
    policies_json: str
    def __init__(self, topic: _Optional[str] = ..., segments: _Optional[int] = ..., policies_json: _Optional[str] = ...) -> None: ...

class ListTopics(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class Names(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class AdminRequest(_message.Message):
    __slots__ = ("what", "args_json")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ARGS_JSON_FIELD_NUMBER: _ClassVar[int]
    what: str
    args_json: str
    def __init__(self, what: _Optional[str] = ..., args_json: _Optional[str] = ...) -> None: ...

class AdminReply(_message.Message):
    __slots__ = ("reply_json",)
    REPLY_JSON_FIELD_NUMBER: _ClassVar[int]
    reply_json: str
    def __init__(self, reply_json: _Optional[str] = ...) -> None: ...

class DeleteTopic(_message.Message):
    __slots__ = ("topic", "force", "life", "ask")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    force: bool
    life: int
    ask: bool
    def __init__(self, topic: _Optional[str] = ..., force: _Optional[bool] = ..., life: _Optional[int] = ..., ask: _Optional[bool] = ...) -> None: ...

class Life(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: int
    def __init__(self, life: _Optional[int] = ...) -> None: ...

class UpdateTopic(_message.Message):
    __slots__ = ("topic", "policies_json", "life", "ask")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    POLICIES_JSON_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    policies_json: str
    life: int
    ask: bool
    def __init__(self, topic: _Optional[str] = ..., policies_json: _Optional[str] = ..., life: _Optional[int] = ..., ask: _Optional[bool] = ...) -> None: ...

class SplitSegment(_message.Message):
    __slots__ = ("segment", "at")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    segment: str
    at: int
    def __init__(self, segment: _Optional[str] = ..., at: _Optional[int] = ...) -> None: ...

class MergeSegments(_message.Message):
    __slots__ = ("segment_a", "segment_b")
    SEGMENT_A_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_B_FIELD_NUMBER: _ClassVar[int]
    segment_a: str
    segment_b: str
    def __init__(self, segment_a: _Optional[str] = ..., segment_b: _Optional[str] = ...) -> None: ...

class LayoutChanged(_message.Message):
    __slots__ = ("epoch", "parents", "children")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    parents: _containers.RepeatedScalarFieldContainer[str]
    children: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, epoch: _Optional[int] = ..., parents: _Optional[_Iterable[str]] = ..., children: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteSubscription(_message.Message):
    __slots__ = ("topic", "subscription", "force", "life", "ask")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    force: bool
    life: int
    ask: bool
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., force: _Optional[bool] = ..., life: _Optional[int] = ..., ask: _Optional[bool] = ...) -> None: ...

class TakeSnapshot(_message.Message):
    __slots__ = ("topics", "min_revision", "at_least")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    AT_LEAST_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    min_revision: int
    at_least: int
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., min_revision: _Optional[int] = ..., at_least: _Optional[int] = ...) -> None: ...

class TakeSnapshotOk(_message.Message):
    __slots__ = ("snapshot_json",)
    SNAPSHOT_JSON_FIELD_NUMBER: _ClassVar[int]
    snapshot_json: str
    def __init__(self, snapshot_json: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("earliest", "latest", "timestamp_ms", "segment", "ledger_id", "entry_id", "index", "after", "starts")
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    earliest: bool
    latest: bool
    timestamp_ms: int
    segment: str
    ledger_id: int
    entry_id: int
    index: int
    after: bool
    starts: _containers.RepeatedCompositeFieldContainer[SegmentStart]
    def __init__(self, earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ..., segment: _Optional[str] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., index: _Optional[int] = ..., after: _Optional[bool] = ..., starts: _Optional[_Iterable[_Union[SegmentStart, _Mapping]]] = ...) -> None: ...

class SegmentStart(_message.Message):
    __slots__ = ("segment", "ledger_id", "entry_id", "index")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    segment: str
    ledger_id: int
    entry_id: int
    index: int
    def __init__(self, segment: _Optional[str] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class JoinSubscription(_message.Message):
    __slots__ = ("topic", "subscription", "type", "start", "consumer", "incarnation", "again", "life", "isolation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    type: SubscriptionType
    start: Start
    consumer: str
    incarnation: int
    again: bool
    life: int
    isolation: Isolation
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., type: _Optional[_Union[SubscriptionType, str]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[int] = ..., again: _Optional[bool] = ..., life: _Optional[int] = ..., isolation: _Optional[_Union[Isolation, str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("topic", "subscription", "consumer", "epoch", "segments", "incarnation", "life")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    consumer: str
    epoch: int
    segments: _containers.RepeatedScalarFieldContainer[str]
    incarnation: int
    life: int
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., consumer: _Optional[str] = ..., epoch: _Optional[int] = ..., segments: _Optional[_Iterable[str]] = ..., incarnation: _Optional[int] = ..., life: _Optional[int] = ...) -> None: ...

class LeaveSubscription(_message.Message):
    __slots__ = ("topic", "subscription", "consumer", "incarnation")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    subscription: str
    consumer: str
    incarnation: int
    def __init__(self, topic: _Optional[str] = ..., subscription: _Optional[str] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class OpenProducer(_message.Message):
    __slots__ = ("producer_id", "segment", "name", "incarnation", "name_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    segment: str
    name: str
    incarnation: int
    name_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., segment: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ..., name_epoch: _Optional[int] = ...) -> None: ...

class OpenProducerOk(_message.Message):
    __slots__ = ("last_sequence_id", "ownership_epoch", "sealed", "numbered")
    LAST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    NUMBERED_FIELD_NUMBER: _ClassVar[int]
    last_sequence_id: int
    ownership_epoch: int
    sealed: bool
    numbered: bool
    def __init__(self, last_sequence_id: _Optional[int] = ..., ownership_epoch: _Optional[int] = ..., sealed: _Optional[bool] = ..., numbered: _Optional[bool] = ...) -> None: ...

class TakeName(_message.Message):
    __slots__ = ("segment", "name", "incarnation", "name_epoch")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NAME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    segment: str
    name: str
    incarnation: int
    name_epoch: int
    def __init__(self, segment: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ..., name_epoch: _Optional[int] = ...) -> None: ...

class TakeNameOk(_message.Message):
    __slots__ = ("taken", "name_epoch", "sealed", "all_below", "id_steps")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    ALL_BELOW_FIELD_NUMBER: _ClassVar[int]
    ID_STEPS_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    name_epoch: int
    sealed: bool
    all_below: int
    id_steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, taken: _Optional[bool] = ..., name_epoch: _Optional[int] = ..., sealed: _Optional[bool] = ..., all_below: _Optional[int] = ..., id_steps: _Optional[_Iterable[int]] = ...) -> None: ...

class Send(_message.Message):
    __slots__ = ("producer_id", "sequence_id", "count", "previous_sequence_id", "txnid_most_bits", "txnid_least_bits", "writer", "entry")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    sequence_id: int
    count: int
    previous_sequence_id: int
    txnid_most_bits: int
    txnid_least_bits: int
    writer: int
    entry: bytes
    def __init__(self, producer_id: _Optional[int] = ..., sequence_id: _Optional[int] = ..., count: _Optional[int] = ..., previous_sequence_id: _Optional[int] = ..., txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., writer: _Optional[int] = ..., entry: _Optional[bytes] = ...) -> None: ...

class SendOk(_message.Message):
    __slots__ = ("producer_id", "ledger_id", "entry_id", "duplicate")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    ledger_id: int
    entry_id: int
    duplicate: bool
    def __init__(self, producer_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class CloseProducer(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    def __init__(self, producer_id: _Optional[int] = ...) -> None: ...

class RegisterProducer(_message.Message):
    __slots__ = ("topic", "over", "life")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    over: bool
    life: int
    def __init__(self, topic: _Optional[str] = ..., over: _Optional[bool] = ..., life: _Optional[int] = ...) -> None: ...

class RegisterProducerOk(_message.Message):
    __slots__ = ("life",)
    LIFE_FIELD_NUMBER: _ClassVar[int]
    life: int
    def __init__(self, life: _Optional[int] = ...) -> None: ...

class ProducerClosed(_message.Message):
    __slots__ = ("producer_id", "error", "last_sequence_id")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    error: Error
    last_sequence_id: int
    def __init__(self, producer_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., last_sequence_id: _Optional[int] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("consumer_id", "segment", "subscription", "type", "start", "isolation", "consumer", "incarnation", "assignment_epoch", "min_revision", "end", "store", "trimmed", "permits_are_kib", "after_abort", "tells_passed", "shares")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    PERMITS_ARE_KIB_FIELD_NUMBER: _ClassVar[int]
    AFTER_ABORT_FIELD_NUMBER: _ClassVar[int]
    TELLS_PASSED_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    segment: str
    subscription: str
    type: SubscriptionType
    start: Start
    isolation: Isolation
    consumer: str
    incarnation: int
    assignment_epoch: int
    min_revision: int
    end: Position
    store: str
    trimmed: TrimmedData
    permits_are_kib: bool
    after_abort: bool
    tells_passed: bool
    shares: bool
    def __init__(self, consumer_id: _Optional[int] = ..., segment: _Optional[str] = ..., subscription: _Optional[str] = ..., type: _Optional[_Union[SubscriptionType, str]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., consumer: _Optional[str] = ..., incarnation: _Optional[int] = ..., assignment_epoch: _Optional[int] = ..., min_revision: _Optional[int] = ..., end: _Optional[_Union[Position, _Mapping]] = ..., store: _Optional[str] = ..., trimmed: _Optional[_Union[TrimmedData, str]] = ..., permits_are_kib: _Optional[bool] = ..., after_abort: _Optional[bool] = ..., tells_passed: _Optional[bool] = ..., shares: _Optional[bool] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("ledger_id", "entry_id")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ...) -> None: ...

class SubscribeOk(_message.Message):
    __slots__ = ("ownership_epoch", "seeks")
    OWNERSHIP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEEKS_FIELD_NUMBER: _ClassVar[int]
    ownership_epoch: int
    seeks: int
    def __init__(self, ownership_epoch: _Optional[int] = ..., seeks: _Optional[int] = ...) -> None: ...

class Flow(_message.Message):
    __slots__ = ("consumer_id", "permits", "min_revision", "sharing", "revoke")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    PERMITS_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    REVOKE_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    permits: int
    min_revision: int
    sharing: int
    revoke: bool
    def __init__(self, consumer_id: _Optional[int] = ..., permits: _Optional[int] = ..., min_revision: _Optional[int] = ..., sharing: _Optional[int] = ..., revoke: _Optional[bool] = ...) -> None: ...

class DeliveredEntry(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "entry", "skip", "redelivery_count")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    REDELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    entry: bytes
    skip: bytes
    redelivery_count: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., entry: _Optional[bytes] = ..., skip: _Optional[bytes] = ..., redelivery_count: _Optional[int] = ...) -> None: ...

class Deliver(_message.Message):
    __slots__ = ("consumer_id", "entries", "revision", "passed", "sharing")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    entries: _containers.RepeatedCompositeFieldContainer[DeliveredEntry]
    revision: int
    passed: Position
    sharing: int
    def __init__(self, consumer_id: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[DeliveredEntry, _Mapping]]] = ..., revision: _Optional[int] = ..., passed: _Optional[_Union[Position, _Mapping]] = ..., sharing: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("consumer_id", "cumulative", "positions", "txnid_most_bits", "txnid_least_bits", "writer")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    CUMULATIVE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    cumulative: bool
    positions: _containers.RepeatedCompositeFieldContainer[AckPosition]
    txnid_most_bits: int
    txnid_least_bits: int
    writer: int
    def __init__(self, consumer_id: _Optional[int] = ..., cumulative: _Optional[bool] = ..., positions: _Optional[_Iterable[_Union[AckPosition, _Mapping]]] = ..., txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., writer: _Optional[int] = ...) -> None: ...

class AckPosition(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "indexes", "count")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    indexes: bytes
    count: int
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., indexes: _Optional[bytes] = ..., count: _Optional[int] = ...) -> None: ...

class Rewind(_message.Message):
    __slots__ = ("consumer_id",)
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    def __init__(self, consumer_id: _Optional[int] = ...) -> None: ...

class CloseConsumer(_message.Message):
    __slots__ = ("consumer_id",)
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    def __init__(self, consumer_id: _Optional[int] = ...) -> None: ...

class ConsumerClosed(_message.Message):
    __slots__ = ("consumer_id", "error")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    error: Error
    def __init__(self, consumer_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class EndOfSegment(_message.Message):
    __slots__ = ("consumer_id", "sealed")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    sealed: bool
    def __init__(self, consumer_id: _Optional[int] = ..., sealed: _Optional[bool] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("consumer_id", "positions", "delay_ms", "unbegun")
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    UNBEGUN_FIELD_NUMBER: _ClassVar[int]
    consumer_id: int
    positions: _containers.RepeatedCompositeFieldContainer[AckPosition]
    delay_ms: int
    unbegun: bool
    def __init__(self, consumer_id: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[AckPosition, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., unbegun: _Optional[bool] = ...) -> None: ...

class Seek(_message.Message):
    __slots__ = ("segment", "subscription", "start")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    segment: str
    subscription: str
    start: Start
    def __init__(self, segment: _Optional[str] = ..., subscription: _Optional[str] = ..., start: _Optional[_Union[Start, _Mapping]] = ...) -> None: ...

class SegmentCut(_message.Message):
    __slots__ = ("segment", "revision", "resolved")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_FIELD_NUMBER: _ClassVar[int]
    segment: str
    revision: int
    resolved: Position
    def __init__(self, segment: _Optional[str] = ..., revision: _Optional[int] = ..., resolved: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class SegmentCutOk(_message.Message):
    __slots__ = ("ownership_epoch", "end", "undecided", "aborted")
    OWNERSHIP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    UNDECIDED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    ownership_epoch: int
    end: Position
    undecided: _containers.RepeatedCompositeFieldContainer[TxnIdBits]
    aborted: _containers.RepeatedCompositeFieldContainer[AbortedWriter]
    def __init__(self, ownership_epoch: _Optional[int] = ..., end: _Optional[_Union[Position, _Mapping]] = ..., undecided: _Optional[_Iterable[_Union[TxnIdBits, _Mapping]]] = ..., aborted: _Optional[_Iterable[_Union[AbortedWriter, _Mapping]]] = ...) -> None: ...

class AbortedWriter(_message.Message):
    __slots__ = ("txnid_most_bits", "txnid_least_bits", "writer", "whole")
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    txnid_most_bits: int
    txnid_least_bits: int
    writer: int
    whole: bool
    def __init__(self, txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., writer: _Optional[int] = ..., whole: _Optional[bool] = ...) -> None: ...

class SealSegment(_message.Message):
    __slots__ = ("segment", "change_id")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ID_FIELD_NUMBER: _ClassVar[int]
    segment: str
    change_id: str
    def __init__(self, segment: _Optional[str] = ..., change_id: _Optional[str] = ...) -> None: ...

class SealSegmentOk(_message.Message):
    __slots__ = ("end", "ledger_revision", "ownership_epoch")
    END_FIELD_NUMBER: _ClassVar[int]
    LEDGER_REVISION_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    end: Position
    ledger_revision: int
    ownership_epoch: int
    def __init__(self, end: _Optional[_Union[Position, _Mapping]] = ..., ledger_revision: _Optional[int] = ..., ownership_epoch: _Optional[int] = ...) -> None: ...

class SegmentPositions(_message.Message):
    __slots__ = ("segment", "min_revision", "for_cut", "timestamp_ms")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    FOR_CUT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    segment: str
    min_revision: int
    for_cut: bool
    timestamp_ms: int
    def __init__(self, segment: _Optional[str] = ..., min_revision: _Optional[int] = ..., for_cut: _Optional[bool] = ..., timestamp_ms: _Optional[int] = ...) -> None: ...

class SegmentPositionsOk(_message.Message):
    __slots__ = ("max_read_position", "last_confirmed", "ownership_epoch", "sealed", "before_timestamp")
    MAX_READ_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BEFORE_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    max_read_position: Position
    last_confirmed: Position
    ownership_epoch: int
    sealed: bool
    before_timestamp: Position
    def __init__(self, max_read_position: _Optional[_Union[Position, _Mapping]] = ..., last_confirmed: _Optional[_Union[Position, _Mapping]] = ..., ownership_epoch: _Optional[int] = ..., sealed: _Optional[bool] = ..., before_timestamp: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class ScanEntries(_message.Message):
    __slots__ = ("segment", "after", "end", "min_revision", "max_entries", "trimmed", "columns")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    segment: str
    after: Position
    end: Position
    min_revision: int
    max_entries: int
    trimmed: TrimmedData
    columns: bool
    def __init__(self, segment: _Optional[str] = ..., after: _Optional[_Union[Position, _Mapping]] = ..., end: _Optional[_Union[Position, _Mapping]] = ..., min_revision: _Optional[int] = ..., max_entries: _Optional[int] = ..., trimmed: _Optional[_Union[TrimmedData, str]] = ..., columns: _Optional[bool] = ...) -> None: ...

class ScanEntriesOk(_message.Message):
    __slots__ = ("heads", "through", "ended", "columns")
    HEADS_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    heads: _containers.RepeatedCompositeFieldContainer[EntryHead]
    through: Position
    ended: bool
    columns: HeadColumns
    def __init__(self, heads: _Optional[_Iterable[_Union[EntryHead, _Mapping]]] = ..., through: _Optional[_Union[Position, _Mapping]] = ..., ended: _Optional[bool] = ..., columns: _Optional[_Union[HeadColumns, _Mapping]] = ...) -> None: ...

class HeadColumns(_message.Message):
    __slots__ = ("ledger_ids", "entry_ids", "txns", "writers", "counts", "sizes_bytes", "publish_times_ms", "aborted", "sequence_ids", "producers", "txn_ids", "producer_names", "pieces_at", "pieces")
    LEDGER_IDS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_IDS_FIELD_NUMBER: _ClassVar[int]
    TXNS_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SIZES_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAMES_FIELD_NUMBER: _ClassVar[int]
    PIECES_AT_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    ledger_ids: _containers.RepeatedScalarFieldContainer[int]
    entry_ids: _containers.RepeatedScalarFieldContainer[int]
    txns: _containers.RepeatedScalarFieldContainer[int]
    writers: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sizes_bytes: _containers.RepeatedScalarFieldContainer[int]
    publish_times_ms: _containers.RepeatedScalarFieldContainer[int]
    aborted: _containers.RepeatedScalarFieldContainer[bool]
    sequence_ids: _containers.RepeatedScalarFieldContainer[int]
    producers: _containers.RepeatedScalarFieldContainer[int]
    txn_ids: _containers.RepeatedCompositeFieldContainer[TxnIdBits]
    producer_names: _containers.RepeatedCompositeFieldContainer[HeadProducer]
    pieces_at: _containers.RepeatedScalarFieldContainer[int]
    pieces: _containers.RepeatedCompositeFieldContainer[PieceHead]
    def __init__(self, ledger_ids: _Optional[_Iterable[int]] = ..., entry_ids: _Optional[_Iterable[int]] = ..., txns: _Optional[_Iterable[int]] = ..., writers: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., sizes_bytes: _Optional[_Iterable[int]] = ..., publish_times_ms: _Optional[_Iterable[int]] = ..., aborted: _Optional[_Iterable[bool]] = ..., sequence_ids: _Optional[_Iterable[int]] = ..., producers: _Optional[_Iterable[int]] = ..., txn_ids: _Optional[_Iterable[_Union[TxnIdBits, _Mapping]]] = ..., producer_names: _Optional[_Iterable[_Union[HeadProducer, _Mapping]]] = ..., pieces_at: _Optional[_Iterable[int]] = ..., pieces: _Optional[_Iterable[_Union[PieceHead, _Mapping]]] = ...) -> None: ...

class HeadProducer(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class EntryHead(_message.Message):
    __slots__ = ("ledger_id", "entry_id", "txnid_most_bits", "txnid_least_bits", "writer", "count", "size_bytes", "publish_time_ms", "aborted", "piece")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    entry_id: int
    txnid_most_bits: int
    txnid_least_bits: int
    writer: int
    count: int
    size_bytes: int
    publish_time_ms: int
    aborted: bool
    piece: PieceHead
    def __init__(self, ledger_id: _Optional[int] = ..., entry_id: _Optional[int] = ..., txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., writer: _Optional[int] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., aborted: _Optional[bool] = ..., piece: _Optional[_Union[PieceHead, _Mapping]] = ...) -> None: ...

class PieceHead(_message.Message):
    __slots__ = ("producer", "incarnation", "chunk_id", "chunk_index", "chunk_count")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    producer: str
    incarnation: int
    chunk_id: int
    chunk_index: int
    chunk_count: int
    def __init__(self, producer: _Optional[str] = ..., incarnation: _Optional[int] = ..., chunk_id: _Optional[int] = ..., chunk_index: _Optional[int] = ..., chunk_count: _Optional[int] = ...) -> None: ...

class EntryMetadata(_message.Message):
    __slots__ = ("producer", "incarnation", "sequence_id", "count", "txnid_most_bits", "txnid_least_bits", "writer", "publish_time_ms", "compression", "hash_lo", "hash_hi", "block_bytes", "chunk_count", "chunk_index", "chunk_total", "chunk_id", "name_epoch", "all_below", "id_steps", "deliver_at_ms")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TXNID_MOST_BITS_FIELD_NUMBER: _ClassVar[int]
    TXNID_LEAST_BITS_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    HASH_LO_FIELD_NUMBER: _ClassVar[int]
    HASH_HI_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_INDEX_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ALL_BELOW_FIELD_NUMBER: _ClassVar[int]
    ID_STEPS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    producer: str
    incarnation: int
    sequence_id: int
    count: int
    txnid_most_bits: int
    txnid_least_bits: int
    writer: int
    publish_time_ms: int
    compression: Compression
    hash_lo: int
    hash_hi: int
    block_bytes: int
    chunk_count: int
    chunk_index: int
    chunk_total: int
    chunk_id: int
    name_epoch: int
    all_below: int
    id_steps: _containers.RepeatedScalarFieldContainer[int]
    deliver_at_ms: int
    def __init__(self, producer: _Optional[str] = ..., incarnation: _Optional[int] = ..., sequence_id: _Optional[int] = ..., count: _Optional[int] = ..., txnid_most_bits: _Optional[int] = ..., txnid_least_bits: _Optional[int] = ..., writer: _Optional[int] = ..., publish_time_ms: _Optional[int] = ..., compression: _Optional[_Union[Compression, str]] = ..., hash_lo: _Optional[int] = ..., hash_hi: _Optional[int] = ..., block_bytes: _Optional[int] = ..., chunk_count: _Optional[int] = ..., chunk_index: _Optional[int] = ..., chunk_total: _Optional[int] = ..., chunk_id: _Optional[int] = ..., name_epoch: _Optional[int] = ..., all_below: _Optional[int] = ..., id_steps: _Optional[_Iterable[int]] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...
