/* The floor under a schedule: how late this machine wakes a thread that sleeps until a time, 10,000
 * times a second or as often as is said. What a load generator is late by cannot be less. BUSY is the
 * share of the time that the thread computes, as a generator has to that sends as much of what it can:
 * whoever computes is interrupted in it, by the machine below for one, and is late for all that fell
 * due meanwhile.
 *
 * Usage: timer SECONDS [RATE BUSY]    prints {"count":N,"p50_ms":…,"p99_ms":…,"p999_ms":…,"max_ms":…} */
#include "floor.h"

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0;
    double rate = argc > 2 ? atof(argv[2]) : 10000, busy = argc > 3 ? atof(argv[3]) : 0;
    if (seconds <= 0 || rate < 1 || busy < 0 || busy >= 1) {
        fprintf(stderr, "usage: timer SECONDS [RATE BUSY]\n");
        return 2;
    }
    uint64_t period = (uint64_t)(1e9 / rate), work = (uint64_t)(busy * 1e9 / rate);
    static struct hist late;
    uint64_t due = now_ns(), end = due + (uint64_t)(seconds * 1e9);
    while ((due += period) < end) {
        struct timespec until = {.tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        uint64_t at_ns = now_ns();
        hist_add(&late, at_ns > due ? at_ns - due : 0);
        while (busy > 0 && now_ns() < at_ns + work) {}
    }
    printf("{\"count\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p999_ms\":%.3f,\"max_ms\":%.3f}\n",
           (unsigned long long)late.count, hist_at(&late, .5) / 1e6, hist_at(&late, .99) / 1e6,
           hist_at(&late, .999) / 1e6, late.max / 1e6);
    return 0;
}
