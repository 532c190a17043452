//go:build linux

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The pictures: the most telling faults, and the one at the top of README.md.
const (
	topPicture  = "hang"
	topPrograms = "onlyone,consul-lock"
	pictureList = "cut,keeper-kill,agent-freeze-short"
)

// reportMain writes docs/results.md and docs/img from docs/results.
func reportMain(args []string) int {
	docs := "docs"
	if len(args) > 0 {
		docs = args[0]
	}
	if err := writeReport(docs); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return exitFailed
	}
	return exitOK
}

func writeReport(docs string) error {
	files, err := report(docs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(docs, "img"), 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(docs, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// report makes all that is made from docs/results: files by their names below docs.
func report(docs string) (map[string]string, error) {
	logs, err := readLogs(docs)
	if err != nil {
		return nil, err
	}
	bench, err := readBench(filepath.Join(docs, benchLog))
	if err != nil {
		return nil, err
	}
	files := render(logs, bench)
	blocks := collect(logs).blocks(bench)
	for _, name := range []string{"../README.md", "compare.md"} {
		page, err := os.ReadFile(filepath.Join(docs, name))
		if err != nil {
			return nil, err
		}
		if files[name], err = fill(string(page), blocks); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}

// A logFile is one file below docs/results.
type logFile struct {
	name    string
	records []record
}

func readLogs(docs string) (logs []logFile, err error) {
	names, err := filepath.Glob(filepath.Join(docs, "results", "hosts-*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("there is no hosts-*.jsonl in %s", filepath.Join(docs, "results"))
	}
	for _, name := range names {
		records, err := readLog(name)
		if err != nil {
			return nil, err
		}
		logs = append(logs, logFile{filepath.Base(name), records})
	}
	return logs, nil
}

// render makes those files that hold nothing else.
func render(logs []logFile, bench *benchReport) map[string]string {
	r := collect(logs)
	files := map[string]string{"results.md": r.page(bench)}
	for _, name := range strings.Split(pictureList, ",") {
		if plays := r.drawn(name, ""); len(plays) > 0 {
			files["img/"+name+".svg"] = picture(plays)
		}
	}
	if plays := r.drawn(topPicture, topPrograms); len(plays) > 0 {
		files["img/top.svg"] = picture(plays)
	}
	return files
}

// results are the logs, sorted.
type results struct {
	runs   []namedRun
	plays  plays
	pieces []pieceRun
	routes plays // of the runs in which one onlyone knew the servers' addresses, and one didn't
}

type plays map[string][]*playRecord // by Consul's version

type namedRun struct {
	file string
	*runRecord
}

type pieceRun struct {
	run *runRecord
	*pieceRecord
}

func collect(logs []logFile) *results {
	r := &results{plays: plays{}, routes: plays{}}
	for _, f := range logs {
		into := r.plays
		if slices.ContainsFunc(f.records, func(rec record) bool { return rec.Play != nil && rec.Play.Program == withServers }) {
			into = r.routes
		}
		var run *runRecord
		for _, rec := range f.records {
			switch {
			case rec.Run != nil:
				run = rec.Run
				r.runs = append(r.runs, namedRun{f.name, run})
			case rec.Play != nil && run != nil:
				into[run.Consul] = append(into[run.Consul], rec.Play)
			case rec.Piece != nil && run != nil:
				r.pieces = append(r.pieces, pieceRun{run, rec.Piece})
			}
		}
	}
	return r
}

// of are the plays of a fault by a program on a version of Consul.
func (p plays) of(version, fault, program string) (all []*playRecord) {
	for _, p := range p[version] {
		if p.Fault == fault && p.Program == program {
			all = append(all, p)
		}
	}
	return all
}

// drawn are the plays of a picture: the worst of each program, on the newest Consul.
func (r *results) drawn(fault, only string) (all []*playRecord) {
	for _, version := range slices.Backward(r.plays.versions()) {
		for _, name := range programNames() {
			if plays := r.plays.of(version, fault, name); len(plays) > 0 && (only == "" || slices.Contains(splitList(only), name)) {
				all = append(all, worst(plays))
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}

// versions of Consul, the oldest first.
func (p plays) versions() []string {
	v := slices.Collect(maps.Keys(p))
	slices.SortFunc(v, func(a, b string) int { return len(a) - len(b) }) // 1.8, 1.14
	return v
}

// worst is the play with the longest time of two at once, then of nobody.
func worst(plays []*playRecord) *playRecord {
	return slices.MaxFunc(plays, func(a, b *playRecord) int {
		for _, f := range []func(*verdictRecord) float64{
			func(v *verdictRecord) float64 { return float64(len(v.Broken)) },
			func(v *verdictRecord) float64 { return v.Overlap },
			func(v *verdictRecord) float64 { return v.OverlapAll },
			func(v *verdictRecord) float64 { return v.TokenOverlap },
			func(v *verdictRecord) float64 { return float64(v.Needless) },
			func(v *verdictRecord) float64 { return v.Idle },
		} {
			if x, y := f(a.Verdict), f(b.Verdict); x != y {
				if x < y {
					return -1
				}
				return 1
			}
		}
		return 0
	})
}

// cell is what a program did in a fault, in words.
func cell(p *playRecord) string {
	v := p.Verdict
	var words []string
	say := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	still := func(yes bool) string {
		if yes {
			return " and still at the end"
		}
		return ""
	}
	switch {
	case v.Overlap > 0:
		say("two at once for %.1f s%s", v.Overlap, still(v.Still))
	case v.OverlapAll > 0:
		say("a process of the old run beside the new one for %.1f s%s", v.OverlapAll, still(v.StillAll))
	}
	if v.TokenOverlap > 0 {
		say("two at once for %.1f s%s", v.TokenOverlap, still(v.StillAll))
	}
	switch {
	case v.TakeOver < 0:
		say("nobody took over")
	case v.TakeOver > 0 && v.Idle >= 0.1:
		say("next after %.1f s (nobody for %.1f s)", v.TakeOver, v.Idle)
	case v.TakeOver > 0:
		say("next after %.1f s", v.TakeOver)
	case v.Moves == 0:
		say("ran on")
	}
	if v.Needless > 0 {
		say("needlessly")
	}
	if n := v.Survivors; n > 0 {
		say("survivors: %d", n)
	}
	// The one that had the lock. Contenders end, too, while they can't reach the store.
	holder := func(e exitRecord) bool { return len(p.Terms) > 0 && e.Host == p.Terms[0].Host }
	if i := slices.IndexFunc(p.Exits, holder); i >= 0 {
		say("exit %s", p.Exits[i].How)
	}
	return strings.Join(words, ", ")
}

func (r *results) page(bench *benchReport) string {
	var b strings.Builder
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w("<!-- Made by `go run ./internal/hosts report` from the logs in docs/results. Don't edit. -->")
	w("# What was measured on many hosts\n")
	w("Three servers and four hosts in network namespaces, real Consul (and etcd), real faults: [internal/hosts](../internal/hosts) makes them. All programs contend at the same time on the same hosts, so each fault hits all of them in the same instant. The one that holds its lock on h1 is struck.\n")
	r.how(w)
	for _, version := range slices.Backward(r.plays.versions()) {
		w("## Fault by fault, Consul %s\n", version)
		r.table(w, version)
		r.sums(w, version)
		r.losses(w, version)
	}
	r.otherRoutes(w)
	r.random(w)
	bench.speed(w)
	r.brokenPromises(w)
	r.pictures(w)
	r.limits(w)
	return b.String()
}

type writer func(format string, args ...any)

func (r *results) how(w writer) {
	w("| log | made by | when | versions |\n|---|---|---|---|")
	for i, run := range r.runs {
		if i > 0 && run.file == r.runs[i-1].file {
			continue
		}
		var made, dates []string
		for _, other := range r.runs[i:] {
			if other.file != run.file {
				continue
			}
			dates = append(dates, other.Date)
			if seed := seedOf(other.Command); seed != "" && len(made) > 0 {
				made = append(made, "SEED="+seed)
			} else {
				made = append(made, "`"+other.Command+"`")
			}
		}
		when := slices.Min(dates)
		if last := slices.Max(dates); last != when {
			when += " to " + last
		}
		var versions []string
		for _, name := range []string{"onlyone", "consul", "etcdctl", "flock", "kernel"} {
			if v := run.Versions[name]; v != "" {
				versions = append(versions, v)
			}
		}
		if v := run.Versions["commit"]; v != "" {
			versions = append(versions, "commit "+v)
		}
		w("| [%s](results/%s) | %s | %s | %s |", run.file, run.file, strings.Join(made, ", "), when, strings.Join(versions, "; "))
	}
	w("")
	if len(r.runs) > 0 {
		run := r.runs[len(r.runs)-1]
		w("All with default settings. By the time budget (`onlyone run --explain`, README.md) somebody runs again within %.0f s, and an outage of up to %.1f s moves nothing if requests get through at its end.\n", run.Bound, run.Ridden)
	}
}

// seedOf is the seed in a command.
func seedOf(command string) string {
	_, after, _ := strings.Cut(command, "SEED=")
	seed, _, _ := strings.Cut(after, " ")
	return seed
}

// columns are the programs of a version's table.
func (r *results) columns(version string) (names []string) {
	for _, name := range programNames() {
		if slices.ContainsFunc(r.plays[version], func(p *playRecord) bool { return p.Program == name }) {
			names = append(names, name)
		}
	}
	return names
}

func (r *results) table(w writer, version string) {
	names := r.columns(version)
	w("*Ran on*: the job didn't move. *Next after*: from the begin of the fault until the next command started. *Needlessly*: the fault was shorter than what onlyone promises to ride out. *Exit*: how the program on the struck host ended (a code, or a signal). *Survivors*: processes that still ran when the next command had started. *And still at the end*: the record ended 15 s to 50 s after the fault, not the overlap. An empty field: the fault can't hit this program.\n")
	w("| fault | %s |\n|---|%s", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	for _, f := range faults() {
		row, any := "| "+f.what, false
		for _, name := range names {
			row += " | "
			if plays := r.plays.of(version, f.name, name); len(plays) > 0 {
				any = true
				row += emphasize(worst(plays))
				if len(plays) > 1 {
					row += fmt.Sprintf(" (worst of %d)", len(plays))
				}
			}
		}
		if any {
			w("%s |", row)
		}
	}
	w("")
}

// emphasize sets in bold what must never happen.
func emphasize(p *playRecord) string {
	words := cell(p)
	if p.Verdict.OverlapAll > 0 {
		first, rest, found := strings.Cut(words, ", ")
		if words = "**" + first + "**"; found {
			words += ", " + rest
		}
	}
	return words
}

func (r *results) sums(w writer, version string) {
	names := r.columns(version)
	w("| all of the above together | %s |\n|---|%s", strings.Join(names, " | "), strings.Repeat("---|", len(names)))
	sum := func(what string, f func([]*playRecord) string) {
		row := "| " + what
		for _, name := range names {
			var plays []*playRecord
			for _, p := range r.plays[version] {
				if p.Program == name {
					plays = append(plays, p)
				}
			}
			row += " | " + f(plays)
		}
		w("%s |", row)
	}
	longest := func(f func(*playRecord) float64) func([]*playRecord) string {
		return func(plays []*playRecord) string {
			var most float64
			for _, p := range plays {
				most = max(most, f(p))
			}
			return fmt.Sprintf("%.1f s", most)
		}
	}
	count := func(f func(*playRecord) int) func([]*playRecord) string {
		return func(plays []*playRecord) string {
			n := 0
			for _, p := range plays {
				n += f(p)
			}
			return fmt.Sprint(n)
		}
	}
	sum("faults", func(plays []*playRecord) string { return fmt.Sprint(len(plays)) })
	sum("faults with two at once", count(func(p *playRecord) int { return one(p.Verdict.Overlap > 0) }))
	sum("longest two at once", longest(func(p *playRecord) float64 { return p.Verdict.Overlap }))
	sum("longest, processes of the command counted as well", longest(func(p *playRecord) float64 { return p.Verdict.OverlapAll }))
	sum("longest where only a token helps (see below)", longest(func(p *playRecord) float64 { return p.Verdict.TokenOverlap }))
	sum("survivors", count(func(p *playRecord) int { return p.Verdict.Survivors }))
	sum("processes left after an orderly stop", count(func(p *playRecord) int { return p.Left }))
	sum("needless moves", count(func(p *playRecord) int { return p.Verdict.Needless }))
	sum("longest time to take over", longest(func(p *playRecord) float64 { return p.Verdict.TakeOver }))
	sum("longest time without a command", longest(func(p *playRecord) float64 { return p.Verdict.Idle }))
	sum("longest time by which the bound was missed", longest(func(p *playRecord) float64 { return p.Verdict.Late }))
	sum("nobody took over", count(func(p *playRecord) int { return one(p.Verdict.TakeOver < 0) }))
	sum("a fencing token", func(plays []*playRecord) string {
		switch has, fell := 0, 0; {
		case len(plays) == 0:
			return ""
		default:
			for _, p := range plays {
				has += one(p.Verdict.Tokens)
				fell += p.Verdict.TokensFell
			}
			if has == 0 {
				return "none"
			}
			return fmt.Sprintf("yes, fell %d times", fell)
		}
	})
	w("")
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// losses says where a peer did better.
func (r *results) losses(w writer, version string) {
	w("### Where another program did better than onlyone, Consul %s\n", version)
	found := false
	for _, f := range faults() {
		ours := r.plays.of(version, f.name, "onlyone")
		if len(ours) == 0 {
			continue
		}
		for _, name := range r.columns(version) {
			peers := r.plays.of(version, f.name, name)
			if name == "onlyone" || len(peers) == 0 {
				continue
			}
			if why := better(worst(peers), worst(ours)); why != "" {
				found = true
				w("* %s, %s: %s.", f.what, name, why)
			}
		}
	}
	if !found {
		w("Nowhere in these faults.")
	}
	w("\nA faster take-over that was paid for with two commands at once isn't listed.")
	w("")
}

// notable is the difference of two times that counts, in seconds.
const notable = 1

func better(peer, ours *playRecord) string {
	p, o := peer.Verdict, ours.Verdict
	// Two commands at once are never made up for by being faster. A process that lived on
	// is another matter: it is named.
	harm := func(v *verdictRecord) float64 { return max(v.Overlap, v.TokenOverlap) }
	but := ""
	if p.OverlapAll > 0 {
		but = fmt.Sprintf(" (but a process of its old run lived on for %.1f s)", p.OverlapAll)
	}
	switch {
	case harm(p) > harm(o):
		return ""
	case harm(p) < harm(o):
		return fmt.Sprintf("two at once for %.1f s, onlyone %.1f s", harm(p), harm(o)) + but
	case p.Moves == 0 && p.TakeOver == 0 && o.Moves > 0:
		return "ran on, onlyone moved the job" + but
	case p.Survivors < o.Survivors:
		return fmt.Sprintf("survivors %d, onlyone %d", p.Survivors, o.Survivors) + but
	case p.TakeOver > 0 && (o.TakeOver < 0 || o.TakeOver > p.TakeOver+notable):
		return fmt.Sprintf("next after %.1f s, onlyone %.1f s", p.TakeOver, o.TakeOver) + but
	case p.Idle+notable < o.Idle:
		return fmt.Sprintf("nobody ran for %.1f s, onlyone %.1f s", p.Idle, o.Idle) + but
	}
	return ""
}

// otherRoutes compares onlyone with itself: told of its agent, and of the servers, too.
func (r *results) otherRoutes(w writer) {
	if len(r.routes) == 0 {
		return
	}
	w("## More than one way to Consul\n")
	w("The same faults hit two onlyones in the same instant. One knows its agent (`--http-addr AGENT`). The other one goes to the servers themselves when its agent doesn't answer (`--http-addr AGENT,SERVER,SERVER,SERVER`). These faults moved the job of either:\n")
	w("| Consul | fault | the agent | the agent and the servers |\n|---|---|---|---|")
	var unmoved []string
	for _, version := range slices.Backward(r.routes.versions()) {
		var both []string
		for _, f := range faults() {
			alone, servers := r.routes.of(version, f.name, "onlyone"), r.routes.of(version, f.name, withServers)
			switch {
			case len(alone) == 0 || len(servers) == 0:
			case moves(alone)+moves(servers) == 0:
				both = append(both, f.what)
			default:
				w("| %s | %s | %s | %s |", version, f.what, outcome(alone), outcome(servers))
			}
		}
		if len(both) > 0 {
			unmoved = append(unmoved, fmt.Sprintf("Both ran on, Consul %s: %s.\n", version, strings.Join(both, "; ")))
		}
	}
	w("\n%s", strings.Join(unmoved, "\n"))
}

// outcome is what a fault did to a program: its worst play, and how many of them moved the job.
func outcome(all []*playRecord) string {
	words := emphasize(worst(all))
	if len(all) > 1 {
		words += fmt.Sprintf(" (worst of %d; %d moved)", len(all), moves(all))
	}
	return words
}

// moves counts the plays in which the job moved.
func moves(all []*playRecord) (n int) {
	for _, p := range all {
		n += min(p.Verdict.Moves, 1)
	}
	return n
}

func (r *results) random(w writer) {
	if len(r.pieces) == 0 {
		return
	}
	w("## Random faults\n")
	w("Each piece begins with a fresh cluster. A seed decides which faults come, on whom, how long and in which order; the same line with that seed plays them again.\n")
	w("| Consul | program | pieces | time | faults | commands started | longest two at once | where only a token helps | survivors | needless moves | tokens that fell | longest without a command | promises broken |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	type key struct{ consul, program string }
	sums := map[key][]pieceRun{}
	var keys []key
	for _, p := range r.pieces {
		k := key{p.Consul, p.Program}
		if sums[k] == nil {
			keys = append(keys, k)
		}
		sums[k] = append(sums[k], p)
	}
	for _, k := range keys {
		var lasted, overlap, token, idle float64
		var strikes, terms, survivors, needless, fell, broken int
		for _, p := range sums[k] {
			v := p.Verdict
			lasted += p.Lasted
			overlap, token, idle = max(overlap, v.OverlapAll), max(token, v.TokenOverlap), max(idle, v.Idle)
			strikes, terms, survivors, needless, fell = strikes+len(p.Faults), terms+p.Terms, survivors+v.Survivors, needless+v.Needless, fell+v.TokensFell
			broken += len(v.Broken)
		}
		b := fmt.Sprint(broken)
		if p, ok := programByName(k.program); !ok || !p.ours {
			b = "" // it hasn't promised these
		}
		w("| %s | %s | %d | %.0f min | %d | %d | %.1f s | %.1f s | %d | %d | %d | %.1f s | %s |", k.consul, k.program, len(sums[k]), lasted/60, strikes, terms,
			overlap, token, survivors, needless, fell, idle, b)
	}
	w("\nThe longest time without a command counts faults that hit all hosts, and the time until they were over.\n")
	var seeds []string
	for _, p := range r.pieces {
		if s := fmt.Sprint(p.Seed); !slices.Contains(seeds, s) {
			seeds = append(seeds, s)
		}
	}
	w("Seeds: %s.\n", strings.Join(seeds, ", "))
}

// brokenPromises lists what onlyone has promised and not held.
func (r *results) brokenPromises(w writer) {
	w("## Promises of onlyone that were broken\n")
	n := 0
	for _, all := range []plays{r.plays, r.routes} {
		for _, version := range all.versions() {
			for _, p := range all[version] { // of other programs nothing counts as broken
				for _, b := range p.Verdict.Broken {
					n++
					w("* Consul %s, %s: %s", version, p.Fault, b)
				}
			}
		}
	}
	for _, p := range r.pieces {
		for _, b := range p.Verdict.Broken {
			n++
			w("* Consul %s, seed %d: %s", p.Consul, p.Seed, b)
		}
	}
	if n == 0 {
		w("None in these logs.")
	}
	w("")
}

func (r *results) pictures(w writer) {
	w("## Pictures\n")
	for _, name := range strings.Split(pictureList, ",") {
		if plays := r.drawn(name, ""); len(plays) > 0 {
			w("![%s](img/%s.svg)\n", plays[0].What, name)
		}
	}
}

func (r *results) limits(w writer) {
	w(`## How to read this

* A command writes from when to when it lived, every 10 ms. It goes on for 0.3 s after SIGTERM, and it has started a helper process, as many commands have. Times are on one clock, CLOCK_BOOTTIME of the machine; the clocks of the hosts themselves (CLOCK_BOOTTIME and CLOCK_MONOTONIC) are hours apart.
* A bar with a gap is a process that didn't run for more than 0.25 s: it was stopped, or the machine was busy.
* A cut of more than 6 s can last longer than it did: the agent's TCP connection sends again after 6.3 s and then after 12.6 s, and whether that is in time depends on the instant of the cut. An election whose votes are split can take more than 14.6 s. What moves then counts as a needless move, but not as a broken promise. %[1]s--lease 30s%[1]s gives 10 s more.
* The wall clock is the same on all hosts: Linux has no namespace for it.
* All hosts share one kernel and one scheduler. A frozen host is one whose processes are stopped. There is no netem here; delay is made by a proxy between a program and its agent.
* *Only a token helps*: an operator deletes the lock's key or restores a snapshot, or a whole host is frozen. No lock can keep two apart then, so these overlaps are counted apart. FENCE_TOKEN (onlyone) and ETCD_LOCK_REV (etcdctl) let the thing that is protected refuse the older one.
* 2 s are allowed for the machine before the bound counts as missed: processes have to be started, and the first of the queue asks once a second whether the lock-delay is over.
* Each program is started again 1 s after it has ended, as systemd does with Restart=always.
* consul-lock is %[1]sconsul lock -shell=false -child-exit-code%[1]s with its defaults. etcdctl-lock is %[1]setcdctl lock --ttl=10%[1]s with all three servers as endpoints. flock locks a file in a folder that all hosts see. Here that is one local file system, so it shows what flock does with processes; it says nothing about NFS.`, "`")
}
