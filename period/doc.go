// Package period says which instants are one period: what --once-per counts by.
//
// Each host computes the period from its own clock when it starts, and asks nobody. So hosts
// whose clocks differ agree, as long as each starts the job by its own clock: the fire at
// 03:00 is the fire at 03:00, whenever it comes.
//
// # Promise
//
//   - [Spec.At] is a function of its arguments: no clock, no environment, no state. Equal
//     [Spec.String], equal time zone data and equal instants make equal periods.
//   - Periods follow each other without gap or overlap, for ever. A period begins at a whole
//     second and is named after it, in UTC.
//   - What begins up to the tolerance early belongs to the period that is about to begin.
//   - [Parse] and At end soon, whatever is typed: the dearest expressions that we know take
//     0.3 and 0.1 ms, most 0.01 ms (BenchmarkParse, BenchmarkAt).
//
// # Durations
//
// They are counted on the clock of the time zone, from Monday, 1970-01-05, 00:00. 1h, 5m and
// 15m begin at full hours, five minutes and quarters, days at midnight, weeks on Mondays, and
// fortnights (2w) on each second Monday: 2026-11-23 is one. 24h is 1d, and 7d is 1w.
//
// Where the clock is changed:
//
//   - A day has 23 or 25 hours. It begins at midnight; where there is none (Havana, Cairo) at
//     the first instant of that day, and where there are two at the first.
//   - Up to an hour, what the clock shows counts. The hour that exists twice has its
//     periods twice, so 1h makes 25 periods that day, and 23 in spring.
//   - Above an hour, each day has the same number: 6h begins at 00, 06, 12 and 18 o'clock, and
//     one of them is an hour shorter or longer.
//   - A length that neither divides a day nor is made of days (7h, 50m, 36h) can't begin at
//     the same time each day. It is counted in UTC, whatever the zone.
//
// # Cron expressions
//
// Five fields, as in crontab(5): numbers, names (MON, JAN), lists, ranges, steps; or @hourly,
// @daily, @weekly, @monthly, @yearly. If neither the day of the month nor the day of the week
// begins with '*', one of them is enough; else both must match. The period begins with the
// latest fire.
//
// Where the clock is changed it goes as cron(8) of Debian does:
//
//   - A job of a fixed time that the clock skips fires right after the gap; one in the hour
//     that exists twice fires once, in the first.
//   - A job with '*' in the minute or the hour fires whenever the clock shows its time: in
//     both hours, and not in a skipped one. An expression that is skipped for ever is refused.
//
// # Limits
//
//   - A host that starts the job late by more than what is left of the period, less the
//     tolerance, is in the next one. No clock can tell that from a fire.
//   - A scheduler that fires by another clock than the host's own (one server that starts the
//     job everywhere) needs clocks that are right within the tolerance.
//   - The zone must be that of the scheduler. cron and systemd timers go by the host's zone,
//     and in another one two fires can share a period, which loses a run; [Spec.FitsClock]
//     tells.
//   - The zone's data must be the same on each host: [LoadZone] uses the host's
//     /usr/share/zoneinfo if there is one. Where a country has changed its rules, update all
//     hosts.
//   - No seconds in expressions, and none of L, W, # and ?, which cron doesn't know either.
//
// # Use
//
//	zone, err := period.LoadZone("Europe/Berlin")
//	spec, err := period.Parse("cron:15 2 * * *", zone)
//	now := time.Now()
//	p := spec.At(now, spec.DefaultTolerance(now))
//
// Errors are one line: what, why, and what to type. They don't name the flag.
//
// zone.go is what changes of the clock do to a calendar; cron.go and duration.go are the
// calendars, which know no zones.
package period
