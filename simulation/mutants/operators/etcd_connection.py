"""Break the rules about the connection to etcd (E4, C6): where it leads, when it is given up, what is said of that."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_REAL_ETCD = "it is about how a real etcd is talked to"
SECURITY = "tests/txnstore/etcd/test_etcd_security.py::"
RENEWED = "test_certificates_that_were_renewed_on_disk_are_read_when_the_former_ones_no_longer_do"
OPENED_ANEW = "test_calls_and_watches_of_a_channel_that_is_opened_anew_are_unanswered"
SILENT = "tests/txnstore/etcd/test_silent_etcd.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="old-address-for-30-s",
        rule="a name that stands for another address is looked up again before leases end (E4)",
        section="§11",
        file="txnwire/transport/grpc_transport.py",
        old='        ("grpc.dns_min_time_between_resolutions_ms", 1000),\n',
        new="",
        tests=(
            "tests/txnwire/transport/test_moved_names.py::"
            "test_a_name_that_stands_for_another_address_is_looked_up_again_before_leases_end",
        ),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="another-cluster-waited-out",
        rule="a process that finds another cluster at all addresses of its etcd ends (E4)",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="        if self._cluster_id is not None and all(one.inadmissible for one in self._endpoints):\n",
        new="        if False:\n",
        tests=(SILENT + "test_e4_whoever_has_another_cluster_at_all_its_addresses_is_told_that_it_is_over",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="one-of-another-cluster-is-the-end",
        rule="a process goes on as long as one address may be of its cluster (E4)",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="and all(one.inadmissible for one in self._endpoints):",
        new="and any(one.inadmissible for one in self._endpoints):",
        tests=(SILENT + "test_e4_an_endpoint_of_another_cluster_is_not_gone_on_with",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="refused-at-each-look",
        rule="an endpoint that must not be used is logged once",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="        if str(error) != str(endpoint.inadmissible):\n",
        new="        if error:\n",
        tests=(SILENT + "test_e4_an_endpoint_of_another_cluster_is_not_gone_on_with",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="unready-without-a-why",
        rule="a read that no endpoint took says why of each",
        section="§4",
        file="txnstore/access/store_client.py",
        old="{why or self._backend.why_not_ready()}",
        new="{why}",
        tests=(SILENT + "test_a_read_that_no_endpoint_took_says_why_of_each_of_them",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="snapshot-that-stands-still",
        rule="a snapshot that stands still is given up (C6)",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="asyncio.timeout(PIECE_TIMEOUT_S)",
        new="asyncio.timeout(None)",
        tests=(
            "tests/txnstore/etcd/test_mute_etcd.py::"
            "test_c6_a_snapshot_that_stands_still_at_a_member_that_answers_pings_is_given_up",
        ),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="unreachable-without-a-why",
        rule="whoever cannot connect is told why",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="            await asyncio.gather(*[self._ask_why(one) for one in self._endpoints if not one.ready()])\n",
        new="",
        tests=(SECURITY + "test_whoever_cannot_connect_is_told_what_is_wrong",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="etcd-at-any-port",
        rule="a port that no etcd can have is refused at once",
        section="§4",
        file="txnstore/etcd/settings.py",
        old="not 1 <= int(match[3][1:]) <= HIGHEST_PORT",
        new="not 1 <= int(match[3][1:])",
        tests=("tests/txnstore/etcd/test_etcd_connection.py::test_malformed_endpoints_are_named",),
        why_tests=NO_REAL_ETCD,
    ),
    *(
        Mutant(
            name=name,
            rule=rule,
            section="§4",
            file="txnstore/etcd/connection.py",
            old=old,
            new=new,
            tests=(SECURITY + test,),
            why_tests=NO_REAL_ETCD,
        )
        for name, rule, old, new, test in (
            (
                "renewed-files-unread",
                "TLS files that were renewed are read where the former ones no longer do (E4)",
                "        if contents == self._contents:\n",
                "        if contents:\n",
                RENEWED,
            ),
            (
                "calls-of-the-former-channel",
                "calls go over the channel that was opened anew (E4)",
                "        self._methods.clear()\n",
                "",
                RENEWED,
            ),
            (
                "file-missing-for-a-moment",
                "a TLS file that is missing amid a renewal is read later (E4)",
                "            except InvalidArgument as error:\n"
                '                log.warning("TLS files of etcd not read again"',
                "            except Compacted as error:\n"
                '                log.warning("TLS files of etcd not read again"',
                RENEWED,
            ),
            (
                "reopened-as-cancelled",
                "a call of a channel that is opened anew counts as unanswered (E4)",
                "            if endpoint.channel is channel or is_cancelled():\n",
                "            if endpoint.channel:\n",
                OPENED_ANEW,
            ),
            (
                "watch-stays-at-the-former-channel",
                "a watch of a channel that is opened anew is told to leave (E4)",
                "        self.leave()\n",
                "",
                OPENED_ANEW,
            ),
        )
    ),
    Mutant(
        name="put-right-and-still-refused",
        rule="an endpoint that was put right does not count as refused once another one is",
        section="§4",
        file="txnstore/etcd/connection.py",
        old="        endpoint.inadmissible = None\n        if not status.leader:",
        new="        if not status.leader:",
        tests=(SILENT + "test_an_endpoint_that_was_put_right_does_not_count_as_refused_once_another_one_is",),
        why_tests=NO_REAL_ETCD,
    ),
    Mutant(
        name="key-without-a-certificate",
        rule="a TLS key without its certificate is refused",
        section="§11",
        file="txnwire/transport/grpc_transport.py",
        old="if (self.certificate is None) != (self.key is None):",
        new="if self.certificate is not None and self.key is None:",
        tests=("tests/txnwire/transport/test_grpc_transport.py::test_a_tls_file_that_cannot_be_used_is_named",),
        why_tests="no simulated process has TLS files",
    ),
    Mutant(
        name="key-alone-is-no-tls",
        rule="any of the TLS files shows that TLS is meant",
        section="§11",
        file="txnstore/etcd/settings.py",
        old="for file in (self.ca, self.certificate, self.key))",
        new="for file in (self.ca, self.certificate))",
        tests=("tests/txnstore/etcd/test_etcd_connection.py::test_plain_http_with_tls_files_is_a_mistake",),
        why_tests="no simulated process has TLS files",
    ),
)
