"""Mutants of commands, pages and files that would mislead an operator, or leave something behind."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_OPERATOR = "the simulation has no operator, no shell and no directories"


def _mutant(name: str, rule: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name=name, rule=rule, section="§12", file=file, old=old, new=new, tests=tests, why_tests=NO_OPERATOR)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "pages-of-ipv4-alone",
        "the HTTP pages are served at an address of IPv6, too",
        "txnctl/process/http.py",
        'kind = _ServerOfIPv6 if host.startswith("[") else _Server',
        "kind = _Server",
        "tests/txnctl/process/test_http_addresses.py::test_the_pages_are_served_at_addresses_of_ipv6_too",
    ),
    _mutant(
        "dev-takes-brackets-for-a-name",
        "a cluster of this machine may listen at an address of IPv6",
        "txnctl/launch/preflight.py",
        "socket.getaddrinfo(bare_host(host), port, type",
        "socket.getaddrinfo(host, port, type",
        "tests/txnctl/process/test_http_addresses.py::test_a_cluster_of_this_machine_may_listen_at_an_address_of_ipv6",
    ),
    _mutant(
        "health-by-a-proxy",
        "a health check asks the process of its host itself, whatever proxies the environment names",
        "txnctl/commands/health.py",
        "urllib.request.ProxyHandler({})",
        "urllib.request.ProxyHandler()",
        "tests/txnctl/commands/test_health.py::test_a_proxy_of_the_machine_is_not_asked_for_a_process_of_this_host",
    ),
    _mutant(
        "health-of-what-is-no-http",
        "what answers no HTTP is not healthy, and told in a line",
        "txnctl/commands/health.py",
        "    except (OSError, HTTPException) as error:\n",
        "    except OSError as error:\n",
        "tests/txnctl/commands/test_health.py::test_what_answers_no_http_is_not_healthy",
    ),
)
