"""The time-outs and intervals of supervision, in seconds, each with why it is what it is."""

import signal
from collections.abc import Mapping
from types import MappingProxyType

GLANCE = 0.02
"""Between two looks of a launcher at its processes: a death is known that soon, at a cost of 0.1 % of a core."""

BEFORE_KILL = 5.0
"""From the SIGTERM that follows a failure to the SIGKILL: enough to write records, and all end within ten seconds."""

AFTER_INTERRUPT = 65.0
"""That workers have to save and end after Ctrl-C: a little more than they give themselves."""

PATIENCE: Mapping[int, float] = MappingProxyType({signal.SIGINT: 60.0, signal.SIGTERM: 8.0})
"""From a signal until a worker that could not stop in agreement ends hard. After Ctrl-C a round may have to end first,
and whoever cannot wait presses it again. SIGTERM means that another worker or the launcher has died, and then there is
nobody left to agree with."""

RESCUE = 2.0
"""That records may take to be written before a hard end: a disk that does not answer must not keep a process alive."""

HEARSAY = 2.0
"""To wait for the cause of a lost connection to become known, here or on another host."""

SILENCE = 20.0
"""Without a beat after which a worker, or another host's launcher, counts as dead; the user may set it. Deaths that a
launcher sees are told at once, so this is only for hosts that are cut off and for processes that hold the GIL."""

LEAST_SILENCE = 2.0
"""The smallest silence that may be set: beats come twice a second and may be late."""

BEAT = 0.5
"""Between the beats of a worker to its servers, and of a launcher to the others."""

ATTENDANCE = 0.25
"""Between a server's looks at who has been silent."""

STARTING = 120.0
"""That a process may take until its first step before it is mentioned, or its first word to a server is given up:
reading data and compiling take minutes. It is not ended for it, in whatever phase."""

HANG = 120.0
"""That a process may stand still before it is ended; the user may set it. Below the 300 s after which the others
give up waiting, so that the process that hangs is named and not the one that waits."""

HANG_NOTICE = 8.0
"""That a process may stand still before it is mentioned, unless its steps take long."""

HANG_FACTOR = 4.0
"""How many times its longest so far a phase may last before the process is mentioned."""

FIRST_TIME = 30.0
"""That a phase may last which this process has not been through before, such as its first checkpoint."""

STOPPED = 0.5
"""That a process may be stopped by a signal before it is mentioned: a debugger stops it for moments."""

HANG_LOOK = 0.25
"""Between two looks at what the processes are doing."""

HELD_UP = 5.0
"""Between two looks where the launcher itself was held up, by a suspended machine or a frozen container: so were its
processes, and the time counts for nothing."""

STACK = 1.0
"""To wait for a process to write its stack."""

AFTER_END = 10.0
"""That a stopped process, or a server that stands still without workers, has once the run is over."""

KNOCK = 20.0
"""That server 0 has to answer a worker that wants to join."""

WAIT_FOR_NODES = 300.0
"""That a launcher waits for those of the other hosts at the start."""

FIRST_REMINDER, REMINDERS = 2.0, 30.0
"""Until a launcher says for whom it waits, and until it says so again."""

STORE_ANSWER = 2.0
"""That a launcher waits for the store while the run goes on: no answer is no news."""

STORE_LINGERS = 3.0
"""That the store stays at the end, until the other launchers have read what they need."""

DEATH_NOTICE = 5.0
"""That a server has to take the notice of a worker's death; one that does not has ended itself."""

LAST_NOTICES = 1.0
"""That such notices have to go out when the launcher ends."""
