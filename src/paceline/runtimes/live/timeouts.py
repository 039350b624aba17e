"""Every time-out and interval of a live run, in seconds, each with why it is what it is."""

import signal
from collections.abc import Mapping
from types import MappingProxyType

# Liveness: of a host's processes by their heartbeats, of other hosts by messages.

BEAT = 0.5
"""Between the messages by which a worker shows its servers, and a launcher the others, that it is alive."""
SILENCE = 20.0
"""Without any message, after which a worker or another host's launcher counts as dead (the default). Deaths that a
launcher sees are reported at once, so this is for hosts that are cut off and processes that hold the GIL."""
LEAST_SILENCE = 2.0
"""The smallest silence that may be set: heartbeats are sent twice a second and may be late."""
ATTENDANCE = 0.25
"""Between a server's checks which workers are silent."""
GLANCE = 0.02
"""Between a launcher's checks of its processes: a death is noticed within it, at a cost of 0.1 % of a core."""

# Hangs: processes that make no progress.

HANG_LOOK = 0.25
"""Between two checks of what the processes are doing."""
HANG = 120.0
"""Without progress, after which a process is ended; the user may set it. Below the 300 s after which the others
give up waiting, so that the process that hangs is named and not the one that waits."""
HANG_NOTICE = 8.0
"""Without progress, after which a process is reported, unless its steps take long."""
HANG_FACTOR = 4.0
"""How many times its longest so far a phase may last before the process is reported."""
FIRST_TIME = 30.0
"""For a phase that this process has not been through before, such as its first checkpoint."""
STARTING = 120.0
"""Until its first step, after which a process is reported, or its first message to a server is no longer awaited:
reading data and compiling take minutes. A process is never ended for it."""
STOPPED = 0.5
"""That a process may be stopped by a signal before it is reported: a debugger stops it for moments."""
HELD_UP = 5.0
"""Between two checks, if the launcher itself was suspended: so were its processes, and the time does not count."""
STACK = 1.0
"""For a process to write its stack."""
AFTER_END = 10.0
"""For a stopped process, or a server without progress, once the run is over."""

# Ending.

BEFORE_KILL = 5.0
"""From the SIGTERM that follows a failure to the SIGKILL: enough to write records, and all end within ten seconds."""
PATIENCE: Mapping[int, float] = MappingProxyType({signal.SIGINT: 60.0, signal.SIGTERM: 8.0})
"""From a signal until a worker that could not stop in agreement ends hard. After Ctrl-C a round may have to end first,
and a second Ctrl-C ends it at once. SIGTERM means that another worker or the launcher has died, and then there is
no other worker to agree with."""
AFTER_INTERRUPT = 65.0
"""For workers to save and end after Ctrl-C: a little more than they give themselves."""
RESCUE = 2.0
"""For records to be written before a hard end: a disk that does not answer must not keep a process alive."""
HEARSAY = 2.0
"""For the cause of a lost connection to become known, here or from another host."""
DEATH_NOTICE = 5.0
"""For a server to accept the notice of a worker's death; one that does not has ended itself."""
LAST_NOTICES = 1.0
"""For such notices to be sent when the launcher ends."""

# The store and its rendezvous.

WAIT_FOR_NODES = 300.0
"""For the launchers of the other hosts to start."""
FIRST_REMINDER, REMINDERS = 2.0, 30.0
"""Until a launcher reports which hosts it waits for, and between such reports."""
STORE_ANSWER = 2.0
"""For the store to answer a launcher during the run; no answer changes nothing."""
STORE_LINGERS = 3.0
"""That the store stays at the end, until the other launchers have read what they need."""
STORE_POLL = 0.05
"""Between a launcher's reads of a key that may be missing."""
STORE_CUT = 240
"""Without TCP's acknowledgement, after which a connection to the store is lost: silence decides earlier."""

# The wire between workers and servers.

CONNECTING = 15.0
"""For a first connection to be established."""
RETRY = 0.2
"""Between two attempts to connect."""
HANDSHAKE = 5.0
"""For a connection to prove that it has the secret."""
CUT = 4
"""Without TCP's acknowledgement, after which a connection is lost: a slow link still has acknowledgements."""
STALLED = 10.0
"""For a server to accept some of a message."""
GRACE = 1.0
"""That messages of others may still be received after a server's connection was lost."""
KNOCK = 20.0
"""For server 0 to answer a worker that wants to join."""
