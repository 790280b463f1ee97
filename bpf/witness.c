/* SPDX-License-Identifier: GPL-2.0-only */
/* Every program of the witness, in one unit: the tracepoint tier, and the trampoline tier where it works. See README.md for why it is shaped so. */
#include <linux/kconfig.h>

#include "record.h"
#include "lib/sizes.h"
#include "lib/kernel.h"
#include "lib/maps.h"
#include "lib/rules.h"
#include "lib/arch.h"
#include "lib/build.h"
#include "lib/path.h"
#include "lib/kept.h"
#include "lib/given.h"
#include "lib/message.h"
#include "open.h"
#ifdef CAISSON_TRAMPOLINE
#include "trampoline_changes.h"
#endif
#include "names.h"
#include "exec.h"
#include "connect.h"
#include "socket.h"
#include "pass.h"
#include "process.h"
#include "cgroup.h"
#include "calls.h"
#include "uring.h"
#ifdef CAISSON_TRAMPOLINE
#include "trampoline.h"
#include "trampoline_objects.h"
#endif
