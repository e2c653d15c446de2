"""The collector of a world whose parts are processes: the OTLP receiver of the tests."""

from pathlib import Path

from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.ports import Ports
from tests.e2e.worlds.process import Process
from tests.e2e.worlds.world import Collector, child_environment


def collector_process(directory: Path) -> Collector:
    """One that does not run yet. It takes no mark: it outlives the parts."""
    port = Ports().take()
    url = f"http://127.0.0.1:{port}"
    command = born("smcp_testing.otlp_receiver", "127.0.0.1", str(port), knows=COMMANDS)
    process = Process("collector", command, child_environment(""), directory, f"{url}/api/services")
    return Collector(url, process)


def sent_to(collector: Collector | None) -> dict[str, str]:
    """The setting of parts on this machine."""
    return {} if collector is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
