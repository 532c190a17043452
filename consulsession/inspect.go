package consulsession

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// A Lock is what Consul knows of a lock at one instant. Its JSON is that of "status --json",
// see docs/json.md.
type Lock struct {
	Name string `json:"name"`
	Hold        // with copies only State: held if one of them is

	Held     int      `json:"held"`             // how many hold it
	Copies   int      `json:"copies,omitempty"` // how many may; 0: one, without copies
	Each     []Copy   `json:"each,omitempty"`   // with copies: those that were ever held
	Waiting  []Party  `json:"waiting,omitempty"`
	Paused   *Order   `json:"paused,omitempty"`   // a pause that is in force
	Problems []string `json:"problems,omitempty"` // keys of ours that can't be read

	copies *api.KVPair
}

// Hold is one lock key with its records.
type Hold struct {
	State    State         `json:"state"`
	Holder   *Party        `json:"holder,omitempty"`
	Unclean  *Party        `json:"unclean,omitempty"`   // free: its last holder ended without releasing it, or wasn't fenced
	StepDown *Order        `json:"step_down,omitempty"` // what the holder was asked for
	Period   *PeriodRecord `json:"period,omitempty"`
	LastRun  *Run          `json:"last_run,omitempty"`
	Runs     []Run         `json:"-"` // the newest last
	Before   []Unclean     `json:"-"` // held: those before its holder that didn't release it, as far as this one was to fence them
}

// State is what a lock key says.
type State string

// Held and Free explain themselves. Foreign: the key is there and isn't a lock.
const (
	Held    State = "held"
	Free    State = "free"
	Foreign State = "foreign"
)

// A Copy is one of several copies of a lock.
type Copy struct {
	Copy int `json:"copy"`
	Hold
}

// A Party is who holds a lock or waits for it. Without a Host it isn't an onlyone: of that
// only the session is known.
type Party struct {
	Session string `json:"session"`
	Token   uint64 `json:"token,omitempty"` // of a holder
	Host    string `json:"host,omitempty"`
	Pid     int    `json:"pid,omitempty"`
	Since   string `json:"since,omitempty"` // RFC 3339, by the clock of Host
	Command string `json:"command,omitempty"`
}

func (p Party) String() string {
	if p.Host == "" {
		return fmt.Sprintf("a session that isn't onlyone's (%s)", p.Session)
	}
	return fmt.Sprintf("%s (pid %d)", p.Host, p.Pid)
}

// At is the lock's hold, or that of one of its copies; a free one if there is none.
func (l Lock) At(copy int) Hold {
	if copy < 0 {
		return l.Hold
	}
	for _, c := range l.Each {
		if c.Copy == copy {
			return c.Hold
		}
	}
	return Hold{State: Free}
}

// A CopyRun is a run of a copy; -1 is the lock itself.
type CopyRun struct {
	Copy int
	Run
}

// AllRuns are all recorded runs, of all copies, the newest last.
func (l Lock) AllRuns() []CopyRun {
	var runs []CopyRun
	add := func(copy int, h Hold) {
		for _, r := range h.Runs {
			runs = append(runs, CopyRun{copy, r})
		}
	}
	add(-1, l.Hold)
	for _, c := range l.Each {
		add(c.Copy, c.Hold)
	}
	slices.SortStableFunc(runs, func(a, b CopyRun) int { return cmp.Compare(a.Token, b.Token) })
	return runs
}

// keys are the keys of one name.
type keys struct {
	lock, holder, runs, period, paused, stepDown, copies *api.KVPair

	queue []*api.KVPair
	held  map[int]*api.KVPair // ~held/I
	top   uint64              // the newest ModifyIndex
}

// locksIn makes locks, in order of their names, of a consistent read of the tree below prefix.
func locksIn(prefix string, kvs api.KVPairs, now time.Time) []Lock {
	names := map[string]*keys{}
	for _, kv := range kvs {
		if name, rest, ok := splitKey(strings.TrimPrefix(kv.Key, prefix+"/")); ok {
			if names[name] == nil {
				names[name] = &keys{}
			}
			if !names[name].add(rest, kv) && names[name].top == 0 {
				delete(names, name)
			}
		}
	}
	copies := map[string]map[int]*keys{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		i := strings.LastIndexByte(name, '/')
		n, ok := copyNumber(name[i+1:])
		if i > 0 && ok && names[name[:i]] != nil && names[name[:i]].copies != nil {
			if copies[name[:i]] == nil {
				copies[name[:i]] = map[int]*keys{}
			}
			copies[name[:i]][n] = names[name]
			delete(names, name)
		}
	}
	var locks []Lock
	for _, name := range slices.Sorted(maps.Keys(names)) {
		locks = append(locks, lockOf(name, names[name], copies[name], now))
	}
	return locks
}

// splitKey cuts a key below the prefix into NAME and one of our keys.
func splitKey(key string) (name, rest string, ok bool) {
	for i := 0; i < len(key); {
		if key[i] == '.' || key[i] == '~' {
			return strings.TrimSuffix(key[:i], "/"), key[i:], i > 0
		}
		n := strings.IndexByte(key[i:], '/')
		if n < 0 {
			break
		}
		i += n + 1
	}
	return "", "", false // somebody else's
}

// copyNumber reads the number of a copy as it is in keys: 0, 1, ..., not 01.
func copyNumber(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && strconv.Itoa(n) == s
}

// add takes a key; false if it isn't one of ours.
func (k *keys) add(rest string, kv *api.KVPair) bool {
	one, last, _ := strings.Cut(rest, "/")
	to := map[string]**api.KVPair{".lock": &k.lock, ".holder": &k.holder, ".runs": &k.runs, ".period": &k.period,
		".paused": &k.paused, ".step-down": &k.stepDown, ".copies": &k.copies}[rest]
	n, isNumber := copyNumber(last)
	switch {
	case to != nil:
		*to = kv
	case one == "~queue" && last != "":
		k.queue = append(k.queue, kv)
	case one == "~held" && isNumber:
		if k.held == nil {
			k.held = map[int]*api.KVPair{}
		}
		k.held[n] = kv
	default:
		return false
	}
	k.top = max(k.top, kv.ModifyIndex)
	return true
}

func lockOf(name string, k *keys, copies map[int]*keys, now time.Time) Lock {
	l := Lock{Name: name, copies: k.copies}
	l.Hold = k.hold(&l.Problems)
	holds := map[string]bool{}
	count := func(h Hold) {
		if h.State == Held {
			l.Held++
			holds[h.Holder.Session] = true
		}
	}
	if k.copies == nil {
		count(l.Hold)
	} else {
		if l.State == Held {
			l.Problems = append(l.Problems, fmt.Sprintf("%s holds it without --copies: it doesn't count as one of them", l.Holder))
		}
		l.Hold = Hold{State: Free, Runs: l.Runs}
		if c, err := parseCopies(k.copies); err != nil {
			l.Problems = append(l.Problems, err.Error())
		} else {
			l.Copies = c.Copies
		}
		for _, n := range slices.Sorted(maps.Keys(copies)) {
			l.Each = append(l.Each, Copy{n, copies[n].hold(&l.Problems)})
			count(l.Each[len(l.Each)-1].Hold)
		}
		if l.Held > 0 {
			l.State = Held
		}
	}
	if k.paused != nil {
		readable(k.paused, &Order{}, &l.Problems)
		if o := ParseOrder(k.paused.Value); !o.Over(now) { // one that can't be read counts, too
			l.Paused = &o
		}
	}
	slices.SortFunc(k.queue, func(a, b *api.KVPair) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	for _, e := range k.queue {
		if e.Session != "" && !holds[e.Session] {
			l.Waiting = append(l.Waiting, party(e.Session, e))
		}
	}
	return l
}

// hold reads a lock key and its records.
func (k *keys) hold(problems *[]string) Hold {
	h := Hold{State: Free}
	if k.holder != nil {
		readable(k.holder, &Record{}, problems)
	}
	switch {
	case k.lock == nil:
	case k.lock.Session != "":
		h.State = Held
		p := party(k.lock.Session, k.lock, k.holder)
		if p.Token = k.lock.ModifyIndex; k.holder != nil && party(p.Session, k.holder).Host != "" {
			p.Token = k.holder.ModifyIndex // which a plain write of the lock key doesn't change
		}
		h.Holder = &p
		if r, _ := ParseRecord(k.lock.Value); r.Session == k.lock.Session {
			h.Before = r.Unfenced
		}
	case k.lock.Flags != api.LockFlagValue:
		h.State = Foreign
		*problems = append(*problems, (&ForeignKeyError{k.lock.Key, k.lock.Flags}).Error())
	default:
		h.Unclean = k.unclean()
	}
	var runs Runs
	if k.runs != nil && readable(k.runs, &runs, problems) && len(runs.Runs) > 0 {
		h.Runs, h.LastRun = runs.Runs, &runs.Runs[len(runs.Runs)-1]
	}
	if k.period != nil {
		if period, err := parsePeriod(k.period.Key, k.period.Value, true); err != nil {
			*problems = append(*problems, err.Error())
		} else {
			h.Period = &period
		}
	}
	if k.stepDown != nil && readable(k.stepDown, &Order{}, problems) {
		if o := ParseOrder(k.stepDown.Value); h.Holder != nil && o.Session == h.Holder.Session {
			h.StepDown = &o
		}
	}
	return h
}

// unclean is the last holder of a free lock, if it didn't release: it held the lock when its
// session ended, or the one after it couldn't fence it.
func (k *keys) unclean() *Party {
	r, ok := ParseRecord(k.lock.Value)
	switch {
	case ok && r.State == "held":
		p := party(r.Session, k.lock)
		if k.holder != nil && party(p.Session, k.holder).Host != "" {
			p.Token = k.holder.ModifyIndex
		}
		return &p
	case ok && r.State == stateUnfenced && len(r.Unfenced) > 0:
		u := r.Unfenced[len(r.Unfenced)-1]
		return &Party{Session: u.Session, Token: u.Token, Host: u.Host, Pid: u.Pid, Since: u.Since}
	}
	return nil
}

// party is who has session, by the first of the records that says so. Also one of a newer
// schema may: that a host is called so doesn't change.
func party(session string, records ...*api.KVPair) Party {
	p := Party{Session: session}
	for _, kv := range records {
		if kv == nil {
			continue
		}
		var r Record
		if json.Unmarshal(kv.Value, &r) == nil && r.Session == session && r.Schema >= 1 && r.Host != "" {
			p.Host, p.Pid, p.Since, p.Command = r.Host, r.Pid, r.Since, r.Command
			break
		}
	}
	return p
}

// readable decodes a record of ours, or notes why it can't.
func readable(kv *api.KVPair, to any, problems *[]string) bool {
	var v struct{ Schema int }
	err := json.Unmarshal(kv.Value, &v)
	switch {
	case err == nil && v.Schema > Schema:
		*problems = append(*problems, newerRecord(kv.Key, v.Schema).Error())
	case err != nil || v.Schema < 1 || json.Unmarshal(kv.Value, to) != nil:
		*problems = append(*problems, (&RecordError{kv.Key, "it isn't a record of onlyone's"}).Error())
	default:
		return true
	}
	return false
}
