// Runs the threads of a block on one thread of the system: each on a stack of
// its own, until it ends or waits for others. So all that they do is in an order
// that a GPU's might have, and one that forgives little: a thread goes as far as
// it can before the next one starts, from the first or from the last of the
// block on, as chance will have it. What lacks a barrier gives other results.
//
// A stack is made by makecontext and entered by longjmp, which costs no call of
// the system. A thread that waits for nobody leaves its stack to the next one.
#include "../launch.cuh"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

namespace machine {

int thread, block[3], threads, blocks;
char *shared;
u64 memory, memoryEnd;

struct Stack {
	jmp_buf place;   // where it goes on
	int thread;      // of the block
	const int *turn; // waits until this is no longer seen; 0: has no thread
	int seen;
	Copies copies;
};

const int most = 1024, stackBytes = 128 << 10, sharedBytes = 256 << 10, page = 4 << 10;

static Stack stacks[most], *running;
static int made, used; // stacks that there are, and that have been used in this block
static int started, ended;
static bool down; // threads start from the last on
static u64 chance = 1;
static Warp warps[most / 32];
static struct {
	int arrived, turn;
	bool any, result; // of anyOf
} meeting;

static void (*kernel)(Launch);
static Launch launch;
static const Members *members; // the kernel's second parameter; 0: it takes none
static jmp_buf home; // where the block's end is
static char failure[256];

// Failures.

static pthread_t worker;
static volatile bool working; // worker is within a kernel
static struct sigaction before[NSIG];

void fail(const char *what) {
	snprintf(failure, sizeof failure, "thread %d of block (%d, %d, %d) %s", thread, block[0], block[1], block[2], what);
	_longjmp(home, 1);
}

static void caught(int signal, siginfo_t *info, void *context) {
	if (!working || !pthread_equal(worker, pthread_self())) return before[signal].sa_sigaction(signal, info, context);
	if (signal == SIGILL) fail("uses an address that is not a multiple of what it loads or stores");
	char what[100];
	snprintf(what, sizeof what, "uses address %p, where it has no memory", info->si_addr);
	fail(what);
}

static void prepare() {
	struct sigaction action = {};
	action.sa_sigaction = caught;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; // on Go's stacks for signals
	sigaction(SIGSEGV, &action, &before[SIGSEGV]);
	sigaction(SIGILL, &action, &before[SIGILL]);
	char *room = (char *)mmap(0, sharedBytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(room + sharedBytes, page, PROT_NONE);
	shared = room + sharedBytes;
}

// Stacks.

static void go(Stack *s) {
	running = s;
	thread = s->thread;
	_longjmp(s->place, 1);
}

static void ending() {
	Warp &w = warp();
	ended++, w.ended++;
	if (w.arrived && w.arrived + w.ended == 32) w.work(w), w.arrived = 0, w.turn++;
	if (meeting.arrived && meeting.arrived + ended == threads) meeting.arrived = 0, meeting.turn++;
}

// toNext goes to a stack that can go on, or that starts a thread.
static void toNext() {
	if (ended == threads) _longjmp(home, 1);
	if (started < threads) go(&stacks[used++]);
	for (int i = 1, me = (int)(running - stacks); i <= used; i++) {
		Stack *s = &stacks[(me + i) % used];
		if (s->turn && *s->turn != s->seen) go(s);
	}
	fail("waits for threads that do not come");
}

static ucontext_t maker;

// life is that of a stack: thread after thread.
static void life() {
	Stack *me = running;
	for (bool first = true;; first = false) {
		me->turn = 0;
		if (!_setjmp(me->place)) {
			if (first) setcontext(&maker);
			toNext();
		}
		while (started < threads) {
			me->thread = thread = down ? threads - 1 - started : started;
			started++;
			if (members) {
				((void (*)(Launch, Members))kernel)(launch, *members);
			} else {
				kernel(launch);
			}
			ending();
		}
	}
}

static void make(int n) {
	static ucontext_t fresh;
	for (; made < n; made++) {
		char *room = (char *)mmap(0, stackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		mprotect(room, page, PROT_NONE);
		getcontext(&fresh);
		fresh.uc_stack.ss_sp = room, fresh.uc_stack.ss_size = stackBytes;
		makecontext(&fresh, life, 0);
		running = &stacks[made];
		swapcontext(&maker, &fresh);
	}
}

static void wait(const int *turn) {
	Stack *me = running;
	me->turn = turn, me->seen = *turn;
	if (!_setjmp(me->place)) toNext();
}

// What threads do together.

Warp &warp() { return warps[thread / 32]; }
Copies &copies() { return running->copies; }

void meet(void (*work)(Warp &)) {
	Warp &w = warp();
	if (w.arrived && w.work != work) fail("does something else than its warp");
	w.work = work;
	if (++w.arrived + w.ended < 32) return wait(&w.turn);
	work(w);
	w.arrived = 0, w.turn++;
}

bool anyOf(bool x) {
	meeting.any |= x;
	if (++meeting.arrived + ended < threads) {
		wait(&meeting.turn);
	} else {
		meeting.result = meeting.any;
		meeting.any = false;
		meeting.arrived = 0, meeting.turn++;
	}
	return meeting.result;
}

void barrier() { anyOf(false); }

static void runBlock(int bytes) {
	started = ended = used = 0;
	chance = chance * 6364136223846793005 + 1442695040888963407;
	down = chance >> 63;
	meeting = {};
	for (int i = 0; i * 32 < threads; i++) {
		int lanes = threads - i * 32 < 32 ? threads - i * 32 : 32;
		warps[i].arrived = 0, warps[i].ended = 32 - lanes;
	}
	memset(shared, 0xff, bytes);
	if (!_setjmp(home)) toNext();
}

const char *run(void (*f)(Launch), const Launch &l, const Members *m, const int *grid, int n, int bytes) {
	if (!shared) prepare();
	static char *const sharedEnd = shared;
	kernel = f, launch = l, members = m, threads = n, blocks = grid[0], shared = sharedEnd - (bytes + 15) / 16 * 16;
	make(n);
	worker = pthread_self();
	working = true;
	for (int z = 0; z < grid[2] && !*failure; z++)
		for (int y = 0; y < grid[1] && !*failure; y++)
			for (int x = 0; x < grid[0] && !*failure; x++) {
				block[0] = x, block[1] = y, block[2] = z;
				runBlock(bytes);
			}
	working = false;
	return *failure ? failure : 0;
}

}
