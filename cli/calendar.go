package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oncePer derives the flags that make a job of a systemd timer run once in each of the
// timer's periods: the calendar expression as one of cron, in the same time zone. zone is
// the host's own, "" if it isn't known. calendar is the expression with its zone written out,
// so that hosts in different zones agree.
func oncePer(expr, zone string) (flags []string, calendar string, err error) {
	words := strings.Fields(expr)
	if len(words) == 0 {
		return nil, "", fmt.Errorf("--on-calendar is empty")
	}
	if last := words[len(words)-1]; len(words) > 1 && isZone(last) {
		zone, words = last, words[:len(words)-1]
	}
	if zone == "" {
		return nil, "", fmt.Errorf("the time zone of this host isn't known; say it: --on-calendar '%s Europe/Berlin'", expr)
	}
	cron, err := cronOf(words)
	if err != nil {
		return nil, "", fmt.Errorf("no --once-per is known for --on-calendar %q: %w", expr, err)
	}
	flags = []string{"--once-per=cron:" + cron}
	if zone != "UTC" {
		flags = append(flags, "--time-zone="+zone)
	}
	return flags, strings.Join(words, " ") + " " + zone, nil
}

// notCalendar is why systemd can't use expr, in the words of systemd-analyze; "" if it can, or if
// nobody is here to say so.
func notCalendar(ctx context.Context, expr string) string {
	ctx, done := context.WithTimeout(ctx, 5*time.Second)
	defer done()
	cmd := exec.CommandContext(ctx, "systemd-analyze", "calendar", "--", expr)
	cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=notice", "SYSTEMD_LOG_TARGET=console", "SYSTEMD_LOG_COLOR=0")
	var said strings.Builder
	cmd.Stderr = &said
	if _, ended := errors.AsType[*exec.ExitError](cmd.Run()); !ended || ctx.Err() != nil {
		return ""
	}
	return strings.TrimSpace(said.String())
}

// isZone: systemd's last word may be UTC or a zone of the IANA database.
func isZone(word string) bool {
	if !strings.ContainsFunc(word, func(r rune) bool { return r >= 'A' && r <= 'Z' }) || word == "Local" { // Go's word
		return false
	}
	_, err := time.LoadLocation(word)
	return err == nil && !isWeekdays(word)
}

// localZone is the host's time zone by name, or "".
func localZone() string {
	if target, err := os.Readlink("/etc/localtime"); err == nil {
		if _, zone, ok := strings.Cut(target, "zoneinfo/"); ok {
			return strings.TrimPrefix(zone, "Etc/")
		}
	}
	if _, err := os.Stat("/etc/localtime"); os.IsNotExist(err) {
		return "UTC"
	}
	return ""
}

// The shorthands of systemd.time(7), as cron has them.
var shorthands = map[string]string{
	"minutely": "* * * * *", "hourly": "0 * * * *", "daily": "0 0 * * *", "weekly": "0 0 * * 1", "monthly": "0 0 1 * *",
	"quarterly": "0 0 1 1,4,7,10 *", "semiannually": "0 0 1 1,7 *", "yearly": "0 0 1 1 *", "annually": "0 0 1 1 *",
}

// cronOf translates a calendar expression, [WEEKDAYS] [[YEAR-]MONTH-DAY] [HOUR:MINUTE[:SECOND]],
// if cron can say the same.
func cronOf(words []string) (string, error) {
	if len(words) == 1 && shorthands[strings.ToLower(words[0])] != "" {
		return shorthands[strings.ToLower(words[0])], nil
	}
	weekdays, month, day, hour, minute := "*", "*", "*", "0", "0"
	var err error
	if len(words) > 0 && isWeekdays(words[0]) {
		if weekdays, err = cronWeekdays(words[0]); err != nil {
			return "", err
		}
		words = words[1:]
	}
	if len(words) > 0 && !strings.Contains(words[0], ":") {
		date := strings.Split(words[0], "-")
		if len(date) < 2 {
			return "", fmt.Errorf("%q is neither a date nor a time that is known here", words[0])
		}
		if len(date) == 3 && date[0] != "*" || len(date) > 3 {
			return "", fmt.Errorf("cron has no years")
		}
		if month, err = cronField(date[len(date)-2], 1, 12); err != nil {
			return "", err
		}
		if day, err = cronField(date[len(date)-1], 1, 31); err != nil {
			return "", err
		}
		words = words[1:]
	}
	if len(words) > 0 {
		clock := strings.Split(words[0], ":")
		if len(clock) == 3 && (clock[2] == "" || strings.Trim(clock[2], "0") != "") || len(clock) < 2 || len(clock) > 3 {
			return "", fmt.Errorf("cron has no seconds")
		}
		if hour, err = cronField(clock[0], 0, 23); err != nil {
			return "", err
		}
		if minute, err = cronField(clock[1], 0, 59); err != nil {
			return "", err
		}
		words = words[1:]
	}
	switch {
	case len(words) > 0:
		return "", fmt.Errorf("%q isn't understood", words[0])
	case weekdays != "*" && day != "*":
		return "", fmt.Errorf("cron takes a day of the month or of the week, not both")
	}
	return strings.Join([]string{minute, hour, day, month, weekdays}, " "), nil
}

// cronField translates "*", "3", "1..5", "0/15", "8..18/2" and lists of the latter. Cron's "*/5"
// isn't systemd's.
func cronField(s string, low, high int) (string, error) {
	if s == "*" {
		return s, nil
	}
	if strings.Trim(s, "0123456789.,/") != "" {
		return "", fmt.Errorf("%q isn't understood", s)
	}
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		span, step, stepped := strings.Cut(part, "/")
		from, to, ranged := strings.Cut(span, "..")
		a, err := strconv.Atoi(from)
		b := a
		if ranged && err == nil {
			b, err = strconv.Atoi(to)
		}
		if stepped && !ranged {
			b = high // from there on
		}
		n, stepErr := 1, error(nil)
		if stepped {
			n, stepErr = strconv.Atoi(step)
		}
		if err != nil || stepErr != nil || a < low || b > high || a > b || n < 1 {
			return "", fmt.Errorf("%q isn't understood", s)
		}
		text := fmt.Sprintf("%d-%d", a, b)
		if a == b {
			text = strconv.Itoa(a)
		}
		if stepped && n > 1 && a != b {
			text += "/" + strconv.Itoa(n)
		}
		out = append(out, text)
	}
	return strings.Join(out, ","), nil
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func isWeekdays(word string) bool {
	return len(word) >= 3 && slices.Contains(weekdays, strings.ToLower(word[:3])) && !strings.Contains(word, ":") && !strings.Contains(word, "/")
}

// cronWeekdays translates "Mon..Fri", "Sat,Sun" and the like.
func cronWeekdays(s string) (string, error) {
	var days []int
	for part := range strings.SplitSeq(strings.TrimSuffix(s, ","), ",") {
		from, to, ranged := strings.Cut(part, "..")
		if !ranged {
			to = from
		}
		a, b := weekday(from), weekday(to)
		if a < 0 || b < 0 || (a+6)%7 > (b+6)%7 { // systemd's week begins on Monday
			return "", fmt.Errorf("%q isn't understood", s)
		}
		for d := a; ; d = (d + 1) % 7 {
			days = append(days, d)
			if d == b {
				break
			}
		}
	}
	slices.Sort(days)
	var out []string
	for _, d := range slices.Compact(days) {
		out = append(out, strconv.Itoa(d))
	}
	return strings.Join(out, ","), nil
}

func weekday(s string) int {
	full := []string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}
	s = strings.ToLower(s)
	if i := slices.Index(full, s); i >= 0 {
		return i
	}
	return slices.Index(weekdays, s)
}
