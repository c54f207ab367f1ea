/* The floor under a schedule: how late this machine wakes a thread that sleeps until a time, 10,000
 * times a second. What a load generator is late by cannot be less.
 *
 * Usage: timer SECONDS    prints {"count":N,"p50_ms":…,"p99_ms":…,"p999_ms":…,"max_ms":…} */
#include "floor.h"

enum { PERIOD_NS = 100 * 1000 };

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    if (seconds <= 0) {
        fprintf(stderr, "usage: timer SECONDS\n");
        return 2;
    }
    static struct hist late;
    uint64_t due = now_ns(), end = due + (uint64_t)(seconds * 1e9);
    while ((due += PERIOD_NS) < end) {
        struct timespec at = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        hist_add(&late, now_ns() - due);
    }
    printf("{\"count\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,\"max_ms\":%.3f}\n",
           (unsigned long long)late.count, hist_at(&late, .5) / 1e6, hist_at(&late, .99) / 1e6,
           hist_at(&late, .999) / 1e6, late.max / 1e6);
    return 0;
}
