"""Exceptions of the device driver, named after what went wrong.

DeviceError
├── NoDevice          nothing to open: the setting, the path or the tool that is missing is named
├── DeviceGone        the device went away while it was in use
├── DeviceTimeout     no answer in time
├── ShortTransfer     fewer bytes than promised
├── BadRecord         a record whose magic, checksum, serial or tag is not what was sent for
├── FramingLost       the device reports a header it did not understand, or a wrong length
└── WrongDevice       identity, version, tables or self-test do not match this driver
"""

from __future__ import annotations

from twinscope.errors import TwinScopeError


class DeviceError(TwinScopeError):
    """Base of everything the driver raises; `cause` is the label of the fallback metric."""

    cause = "device"


class NoDevice(DeviceError):
    """There is nothing to open."""

    cause = "no_device"


class DeviceGone(DeviceError):
    """The device went away."""

    cause = "gone"


class DeviceTimeout(DeviceError):
    """The device did not answer in time."""

    cause = "timeout"


class ShortTransfer(DeviceError):
    """The device sent or took fewer bytes than promised."""

    cause = "short_transfer"


class BadRecord(DeviceError):
    """A result record is damaged or not the one asked for."""

    cause = "bad_record"


class FramingLost(DeviceError):
    """The device lost the framing of its input."""

    cause = "framing"


class WrongDevice(DeviceError):
    """The device is not the one this driver was written for."""

    cause = "wrong_device"
