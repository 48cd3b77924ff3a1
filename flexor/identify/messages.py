"""Recordings of messages: MCAP files and ROS 2 bags (extra `mcap`), as a table of columns.

A column comes from a topic and a place in its messages, `/topic:field.field[index]`; the index is a number, or the name of a
joint in messages that list names (`sensor_msgs/msg/JointState`). Rows are the times of all topics with something measured;
what a topic does not say at a time is nan there. An input (`u.…`) is held from its message on until the next one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flexor.model.topology import Topology

PLACE = re.compile(r"(?P<topic>/[^:]+):(?P<fields>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(\[(?P<index>[^\]]+)\])?")
JOINT_STATES = ("sensor_msgs/msg/JointState", "sensor_msgs/JointState")
CLOCKS = {"header": "stamps in the headers", "publish": "times of publication", "log": "times of recording"}
"""Clocks of a message and what they are. Headers have the time of the measurement, where there is one."""


@dataclass(frozen=True)
class Place:
    """Where a number stands in the messages of a topic."""

    topic: str
    fields: tuple[str, ...]
    index: str | None

    @staticmethod
    def of(column: str, text: str) -> "Place":
        found = PLACE.fullmatch(text)
        if found is None:
            raise ValueError(f"'{column}' comes from '{text}', which is not of the form /topic:field[index].")
        return Place(found["topic"], tuple(found["fields"].split(".")), found["index"])

    def read(self, message: Any) -> float:
        """The number; nan where the message does not list the joint."""
        value = message
        for name in self.fields:
            if not hasattr(value, name):
                raise ValueError(f"messages of {self.topic} have no '{'.'.join(self.fields)}'.")
            value = getattr(value, name)
        if self.index is None:
            return float(value)
        names = list(getattr(message, "name", None) or getattr(message, "joint_names", None) or ())
        at = int(self.index) if self.index.isdigit() else names.index(self.index) if self.index in names else None
        return float(value[at]) if at is not None and at < len(value) else np.nan


def read_messages(
    path: Path, topology: Topology, columns: Mapping[str, str] | None, clock: str | None
) -> tuple[dict[str, np.ndarray], str]:
    """The table of a recording, in seconds since its first row, and a sentence about its clock and units."""
    if clock is not None and clock not in CLOCKS:
        raise ValueError(f"there is no clock '{clock}'; messages have {', '.join(CLOCKS)}.")
    places = {c: Place.of(c, text) for c, text in (columns or _of_joints(path, topology)).items()}
    topics = sorted({place.topic for place in places.values()})
    messages: dict[str, list[tuple[Any, dict[str, Any]]]] = {topic: [] for topic in topics}
    for topic, message, times in _messages(path, topics):
        messages[topic].append((message, times))
    silent = [topic for topic in topics if not messages[topic]]
    if silent:
        raise ValueError(f"'{path.name}' has no messages on {', '.join(silent)}; it has {', '.join(_topics(path))}.")
    clock = clock or ("header" if all(t["header"] for found in messages.values() for _, t in found) else "log")
    if any(t[clock] is None for found in messages.values() for _, t in found):
        raise ValueError(f"'{path.name}' has messages without a stamp in a header; choose clock='log'.")
    series = {
        column: (
            np.array([t[clock] for _, t in messages[place.topic]], np.int64),
            np.array([place.read(m) for m, _ in messages[place.topic]]),
        )
        for column, place in places.items()
    }
    absent = [column for column, (_, x) in series.items() if np.isnan(x).all()]
    if absent:
        raise ValueError(f"'{path.name}' never says {', '.join(f'{c} ({columns[c]})' if columns else c for c in absent)}.")
    table, start = _rows(series)
    since = f"{start // 10**9}.{start % 10**9:09d} s"
    return table, f"clock: {CLOCKS[clock]} of {', '.join(topics)}, since {since}; units: SI (s, rad, m, N, N m)"


def _rows(series: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[dict[str, np.ndarray], int]:
    """Columns over common times: measured values at their own times, inputs held; and the first time, in ns."""
    inputs = {column for column in series if column.startswith("u.")}
    times = np.unique(np.concatenate([t for column, (t, _) in series.items() if column not in inputs]))
    first = max([times[0], *(series[column][0].min() for column in inputs)])  # when all inputs have been heard
    times = times[times >= first]
    table = {"time": (times - times[0]) / 1e9}
    for column, (stamps, values) in series.items():
        order = np.argsort(stamps, kind="stable")
        stamps, values = stamps[order], values[order]
        if column in inputs:
            table[column] = values[np.searchsorted(stamps, times, side="right") - 1]
        else:
            table[column] = np.full(len(times), np.nan)
            kept = stamps >= first
            table[column][np.searchsorted(times, stamps[kept])] = values[kept]
    return table, int(times[0])


def _of_joints(path: Path, topology: Topology) -> dict[str, str]:
    """Columns of the joints that a topic of joint states names, where there is one such topic."""
    topics = [topic for topic, schema in _topics(path).items() if schema in JOINT_STATES]
    if len(topics) != 1:
        several = ", ".join(topics) or "none"
        raise ValueError(f"'{path.name}' has not one topic of joint states ({several}): name the `columns` to read.")
    _, first, _ = next(_messages(path, topics))
    found: dict[str, str] = {}
    for joint in topology.joints:
        if joint.kind in ("hinge", "slide") and joint.name in first.name:
            for prefix, field in (("q", "position"), ("qd", "velocity")):
                if len(getattr(first, field)) == len(first.name):
                    found[f"{prefix}.{joint.name}"] = f"{topics[0]}:{field}[{joint.name}]"
    if not found:
        ours = ", ".join(joint.name for joint in topology.joints)
        raise ValueError(f"{topics[0]} tells of {', '.join(first.name)}, and the joints of '{topology.name}' are {ours}.")
    return found


def _files(path: Path) -> list[Path]:
    """The MCAP files of a recording: the file, or those of a bag's folder."""
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.mcap"))
    if not found:
        other = "it is stored as SQLite: `ros2 bag convert` makes MCAP of it" if list(path.glob("*.db3")) else "it has none"
        raise ValueError(f"'{path.name}' is read from the .mcap files of a bag, and {other}.")
    return found


def _opened(part: Path, read: Callable[[Any], Any]) -> Any:
    """What `read` makes of a reader of the file."""
    try:
        from mcap.exceptions import McapError
        from mcap.reader import make_reader
        from mcap_ros2.decoder import DecoderFactory
    except ImportError as error:
        raise ImportError('recordings of messages need the extra mcap: `pip install "flexor[mcap]"`.') from error
    try:
        with part.open("rb") as file:
            return read(make_reader(file, decoder_factories=[DecoderFactory()]))
    except McapError as error:
        raise ValueError(f"'{part.name}' is no MCAP file of ROS 2 messages, or it is corrupt: {error}.") from error


def _topics(path: Path) -> dict[str, str]:
    """Topics and the names of their messages."""
    found = {}
    for part in _files(path):
        summary = _opened(part, lambda reader: reader.get_summary())
        for channel in summary.channels.values() if summary else ():
            schema = summary.schemas.get(channel.schema_id)
            found[channel.topic] = schema.name if schema else ""
    return found


def _messages(path: Path, topics: Sequence[str]) -> Iterator[tuple[str, Any, dict[str, int | None]]]:
    """Topic, message and times in ns by clock, of all messages on some topics."""
    for part in _files(path):
        messages = _opened(part, lambda reader: list(reader.iter_decoded_messages(topics=topics)))
        for _, channel, message, decoded in messages:
            stamp = getattr(getattr(decoded, "header", None), "stamp", None)
            header = None if stamp is None else int(stamp.sec) * 10**9 + int(stamp.nanosec)
            yield (
                channel.topic,
                decoded,
                {"header": header or None, "publish": message.publish_time, "log": message.log_time},
            )
