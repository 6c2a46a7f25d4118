// Stages of one launch, each of tasks, one stage behind the other.
//
// Tasks are taken, not dealt: a CTA that waits for the end of a stage waits for tasks that others have taken, which run, and never for a CTA that may
// not have begun, as other launches hold its multiprocessor. So it needs no promise that all CTAs run at once.
#pragma once

// In shared memory.
struct Turns {
    u32* words;  // [TURN_WORDS] of every stage the tasks that were taken and those that are done, then the CTAs that have left
    u32 stage;   // at hand, from 0
    u32 task;    // taken last: one that is no other CTA's, or a number that the stage does not have when all of them are taken

    // Takes the first task of a stage, or of the one at hand another; one thread, and a sync behind it. Whoever has taken a task before the stage begins
    // comes to it when it does.
    __device__ __forceinline__ void take(u32 of) { stage = of, task = atomic_add(words + 2 * of, 1); }

    // The task taken last is done: takes another. All threads.
    __device__ __forceinline__ void next() {
        sync_threads();
        // One thread speaks for all: what they wrote before the barrier is released with its count.
        if (threadIdx.x == 0) {
            add_release(words + 2 * stage + 1, 1);
            take(stage);
        }
        sync_threads();
    }

    // Waits until all `tasks` of the stage at hand are done, sees what they wrote, and takes a task of the stage behind it. All threads.
    __device__ __forceinline__ void end(u32 tasks) {
        sync_threads();
        if (threadIdx.x == 0) {
            take(stage + 1);
            wait_for(words + 2 * (stage - 1) + 1, tasks);
        }
        sync_threads();
    }

    // Behind the last stage. The last CTA of the grid leaves the words as it found them.
    __device__ __forceinline__ void leave() const {
        if (threadIdx.x != 0 || atomic_add_acq_rel(words + TURN_WORDS - 1, 1) != gridDim.x - 1) return;
        for (u32 i = 0; i < TURN_WORDS; i++) words[i] = 0;
    }
};
