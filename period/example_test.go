package period_test

import (
	"fmt"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/period"
)

func ExampleSpec_At() {
	zone, err := period.LoadZone("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	spec, err := period.Parse("cron:15 2 * * *", zone)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, clock := range []string{"02:14:49", "02:14:55", "02:15:05"} { // of three hosts
		now, _ := time.ParseInLocation(time.DateTime, "2026-11-29 "+clock, zone)
		fmt.Println(clock, spec.At(now, spec.DefaultTolerance(now)).ID)
	}
	// Output:
	// 02:14:49 2026-11-28T01:15:00Z
	// 02:14:55 2026-11-29T01:15:00Z
	// 02:15:05 2026-11-29T01:15:00Z
}
