"""A command in several processes, as torchrun starts it: the first one writes and prints."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attentropy.core.errors import AttentropyError, DistributedError
from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from attentropy.distributed.team import Team

NOTICED = 0.5  # seconds after which torchrun has noticed that a process ended


@contextmanager
def team_of() -> Iterator["Team"]:
    """The processes of this command; SIGTERM from torchrun acts like Ctrl-C.

    Errors of other ranks than the first begin with the number of the rank.
    """
    from attentropy.cli.failures import sentence
    from attentropy.distributed.launched import dead, launched

    with launched() as team:
        if team.size == 1:
            yield team
            return
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            yield team
        except (AttentropyError, OSError) as error:
            if isinstance(error, DistributedError) and "another rank" in str(error):
                time.sleep(NOTICED)  # the launcher buries processes that ended
                _name(dead(team), error)
            if team.is_first:
                raise
            raise click.ClickException(f"rank {team.peers.rank}: {sentence(error)}") from error
        except KeyboardInterrupt:
            _name(dead(team), None)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _name(gone: list[int], error: BaseException | None) -> None:
    """Raise DistributedError that names ranks, if there are any."""
    if gone:
        ranks = ", ".join(map(str, gone))
        raise DistributedError(f"rank {ranks} died") from error


@contextmanager
def writing_to(out: Path, team: "Team") -> Iterator[None]:
    """Make the folder of the results, in the first process alone.

    Args:
        out: the folder.
        team: the processes of this command.
    """
    from attentropy.scans.store import prepared

    if not team.is_first:
        yield
        return
    with prepared(out):
        yield


@contextmanager
def keeping(
    path: Path, team: "Team", *, before: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """If the work stops or another process dies, say how to continue it.

    Args:
        path: the file that holds what was measured.
        team: the processes of this command.
        before: called before that message, if there is something to continue.
    """
    try:
        yield
    except (KeyboardInterrupt, DistributedError):
        if team.is_first and path.exists():
            before()
            click.echo(told(f"what was measured is in {path}; --resume goes on"), err=True)
        raise


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
