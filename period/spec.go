package period

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxID is the longest id, in bytes: it becomes part of an environment variable and of a
// record in Consul, and one line of a listing.
const maxID = 200

const examples = "use e.g. 5m, 1h, 1d, 2w, 'cron:15 2 * * *' or id:2026-11-29"

// A Spec says which instants are of one period. [Parse] makes one; the zero Spec is none.
type Spec struct {
	text string
	id   string // if rule is nil
	rule calendar
	zone *time.Location
	// again: where the clock is put back, what has begun by it begins again.
	again bool
}

// A calendar says at which readings of a clock on the wall a period begins. A reading is a
// [time.Time] in UTC, whatever the zone of that clock. Calendars know no zones.
type calendar interface {
	// latest returns the last beginning at or before w; the zero time if there is none.
	latest(w time.Time) time.Time
	// following returns the first beginning after w; the zero time if there is none.
	following(w time.Time) time.Time
}

// Parse reads a duration (1h, 5m, 90s, 1h30m, 1d, 2w), cron:EXPR (the five fields of
// crontab(5), or @hourly and the like) or id:STRING. Durations and expressions count on the
// clock of zone; nil is UTC.
func Parse(text string, zone *time.Location) (Spec, error) {
	if zone == nil {
		zone = time.UTC
	}
	name := zone.String()
	if zone == time.Local {
		name = "Local" // also where TZ gives it another name
	}
	if err := checkZone(name); err != nil {
		return Spec{}, err
	}
	if id, ok := strings.CutPrefix(text, "id:"); ok {
		return parseID(id)
	}
	if expr, ok := strings.CutPrefix(text, "cron:"); ok {
		return cronSpec(expr, zone)
	}
	return durationSpec(text, zone)
}

// String returns the Spec in one notation for all ways to write it, with its zone: two
// hosts with the same String have the same periods. It is "id" for an id, which is another
// one in each period.
func (s Spec) String() string { return s.text }

// IsZero reports whether s is the zero Spec.
func (s Spec) IsZero() bool { return s.text == "" }

func parseID(id string) (Spec, error) {
	switch {
	case strings.TrimSpace(id) == "":
		return Spec{}, fmt.Errorf("the id is empty (is a variable of the script unset?); write e.g. id:2026-11-29")
	case len(id) > maxID:
		return Spec{}, fmt.Errorf("the id %q is %d bytes long, at most %d are allowed; use a date, a number or a checksum", short(id), len(id), maxID)
	case !utf8.ValidString(id):
		return Spec{}, fmt.Errorf("the id %q isn't UTF-8; use a date, a number or a checksum", short(id))
	}
	for _, r := range id {
		if !unicode.IsPrint(r) {
			return Spec{}, fmt.Errorf("the id %q contains %q, which can't be printed; leave it out", short(id), r)
		}
	}
	return Spec{text: "id", id: id}, nil
}

// short cuts what was typed, so that a message stays a line.
func short(s string) string {
	if len(s) <= 40 {
		return s
	}
	cut := 40
	for cut > 36 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
