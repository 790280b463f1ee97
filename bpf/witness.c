/* SPDX-License-Identifier: GPL-2.0-only */
/* Every program of the witness, in one unit: the tracepoint tier, and the trampoline tier where it works. See README.md for why it is shaped so. */
#include <linux/kconfig.h>

#include "record.h"
#include "lib/sizes.h"
#include "lib/kernel.h"
#include "lib/maps.h"
#include "lib/arch.h"
#include "lib/build.h"
#include "lib/path.h"
#include "open.h"
#include "exec.h"
#include "connect.h"
#include "process.h"
#include "calls.h"
#ifdef CAISSON_TRAMPOLINE
#include "trampoline.h"
#endif
