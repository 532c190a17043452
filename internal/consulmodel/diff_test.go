package consulmodel_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// TestSameAsServer sends the same random requests to the model and to a real Consul, and compares all of the answers.
// Session ids and raft indexes differ, so each pair of them has to be the same pair every time.
func TestSameAsServer(t *testing.T) {
	addr := os.Getenv("CONSUL_TABLE_ADDR")
	if addr == "" {
		t.Skip("CONSUL_TABLE_ADDR is unset: set it to host:port of a Consul dev agent (1.8 or 1.14) that nobody else uses")
	}
	version := serverVersion(t, "http://"+addr)
	rounds := 40
	if s := os.Getenv("CONSUL_TABLE_ROUNDS"); s != "" {
		rounds, _ = strconv.Atoi(s)
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprintf("%s/seed %d", version, seed), func(t *testing.T) { same(t, addr, version, seed) })
	}
}

// twins holds what is known to be the same on both sides.
type twins struct {
	t           *testing.T
	model, real runner
	rng         *rand.Rand
	key         string
	sessions    [][2]string
	toReal      map[string]string // session ids and indexes of the model
	toModel     map[string]string
	indexes     [][2]string
	log         []string
}

func same(t *testing.T, addr, version string, seed uint64) {
	v := consulmodel.V1_14
	if version == "1.8" {
		v = consulmodel.V1_8
	}
	m := consulmodel.New(consulmodel.Options{Seed: seed, Version: v})
	w := &twins{
		t:        t,
		model:    runner{t: t, base: "http://127.0.0.1:8500", client: &http.Client{Transport: m.Transport(nil)}},
		real:     runner{t: t, base: "http://" + addr, client: &http.Client{Timeout: 15 * time.Second}},
		rng:      rand.New(rand.NewPCG(seed, 1)),
		key:      fmt.Sprintf("diff/%x", rand.Uint64()),
		toReal:   map[string]string{"0": "0"},
		toModel:  map[string]string{"0": "0"},
		indexes:  [][2]string{{"0", "0"}, {"1", "1"}},
		sessions: [][2]string{{"nonsense", "nonsense"}, {"6b86b273-ff34-fce1-9d6b-804eff5a3f57", "6b86b273-ff34-fce1-9d6b-804eff5a3f57"}},
	}
	defer w.real.do("DELETE", "/v1/kv/"+w.key+"?recurse", "")
	// The tables' indexes are known from here on.
	w.send("PUT", "/v1/kv/"+w.key, "x", "x")
	w.create()
	for range 150 {
		w.random()
		if t.Failed() {
			t.Logf("what was sent:\n%s", strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
			break
		}
	}
	for _, s := range w.sessions[2:] {
		w.real.do("PUT", "/v1/session/destroy/"+s[1], "")
	}
}

func pickOne[T any](w *twins, list ...T) T { return list[w.rng.IntN(len(list))] }

func (w *twins) anyKey() string {
	return w.key + pickOne(w, "", "", "/a", "/a/b", "/b", "c")
}

func (w *twins) create() {
	body := fmt.Sprintf(`{"LockDelay":%q,"Behavior":%q,"NodeChecks":[],"TTL":%q}`, pickOne(w, "0s", "0s", "60s"), pickOne(w, "release", "release", "delete"), pickOne(w, "", "60s"))
	m, r := w.send("PUT", "/v1/session/create", body, body)
	w.sessions = append(w.sessions, [2]string{pick(w.t, m, "ID"), pick(w.t, r, "ID")})
}

// random sends one request.
func (w *twins) random() {
	s := pickOne(w, w.sessions[max(0, len(w.sessions)-4):]...)
	if w.rng.IntN(15) == 0 {
		s = pickOne(w, w.sessions...)
	}
	key := "/v1/kv/" + w.anyKey()
	value := pickOne(w, "", "1", "2")
	flags := pickOne(w, "", "", "&flags=7")
	both := func(method, path, body string) { w.send2(method, path, path, body, body) }
	switch n := w.rng.IntN(100); {
	case n < 4:
		w.create()
	case n < 8:
		w.send2("PUT", "/v1/session/destroy/"+s[0], "/v1/session/destroy/"+s[1], "", "")
	case n < 11:
		verb, method := "info", "GET"
		if n == 8 {
			verb, method = "renew", "PUT"
		}
		w.send2(method, "/v1/session/"+verb+"/"+s[0], "/v1/session/"+verb+"/"+s[1], "", "")
	case n < 23:
		w.send2("PUT", key+"?acquire="+s[0]+flags, key+"?acquire="+s[1]+flags, value, value)
	case n < 29:
		w.send2("PUT", key+"?release="+s[0]+flags, key+"?release="+s[1]+flags, value, value)
	case n < 34:
		both("PUT", key+"?x"+flags, value)
	case n < 37:
		i := w.anyIndex()
		w.send2("PUT", key+"?cas="+i[0], key+"?cas="+i[1], value, value)
	case n < 39:
		both("DELETE", key, "")
	case n < 40:
		both("DELETE", key+"?recurse", "")
	case n < 42:
		i := w.anyIndex()
		w.send2("DELETE", key+"?cas="+i[0], key+"?cas="+i[1], "", "")
	case n < 52:
		both("GET", key+pickOne(w, "", "?consistent", "?raw"), "")
	case n < 60:
		both("GET", key+pickOne(w, "?recurse", "/?recurse", "?keys", "/?keys", "/?keys&separator=/"), "")
	default:
		w.txn()
	}
}

func (w *twins) anyIndex() [2]string {
	if w.rng.IntN(2) == 0 {
		return w.indexes[len(w.indexes)-1]
	}
	return pickOne(w, w.indexes[max(0, len(w.indexes)-5):]...)
}

func (w *twins) txn() {
	var a, b []string
	for range 1 + w.rng.IntN(4) {
		verb := pickOne(w, "set", "cas", "lock", "lock", "unlock", "unlock", "get", "get-tree", "check-index", "check-session", "check-session", "check-not-exists", "delete", "delete-cas", "delete-tree", "get-or-empty", "odd")
		if verb == "delete-tree" && w.rng.IntN(3) > 0 {
			verb = "get-tree"
		}
		s, i, key := pickOne(w, w.sessions[max(0, len(w.sessions)-3):]...), w.anyIndex(), w.anyKey()
		v, f := b64(pickOne(w, "", "1", "2")), fmt.Sprintf(`"Flags":%d`, pickOne(w, 0, 0, 7))
		a = append(a, kv(verb, key, v, f, `"Session":"`+s[0]+`"`, `"Index":`+i[0]))
		b = append(b, kv(verb, key, v, f, `"Session":"`+s[1]+`"`, `"Index":`+i[1]))
	}
	w.send("PUT", "/v1/txn"+pickOne(w, "", "?consistent"), txn(a...), txn(b...))
}

func (w *twins) send(method, path, model, real string) (m, r answer) {
	return w.send2(method, path, path, model, real)
}

func (w *twins) send2(method, modelPath, realPath, model, real string) (m, r answer) {
	m, r = w.model.do(method, modelPath, model), w.real.do(method, realPath, real)
	w.log = append(w.log, fmt.Sprintf("%s %s %s\n\treal  %d %s\n\tmodel %d %s", method, modelPath, model, r.status, strings.Join(strings.Fields(string(r.body)), ""), m.status, m.body))
	if m.err != nil || r.err != nil {
		w.t.Fatal(m.err, r.err)
	}
	if m.status != r.status {
		w.t.Errorf("%s %s %s: model %d %s, server %d %s", method, modelPath, model, m.status, m.body, r.status, r.body)
		return m, r
	}
	w.index(m.header.Get("X-Consul-Index"), r.header.Get("X-Consul-Index"), "X-Consul-Index")
	for _, h := range []string{"X-Consul-Knownleader", "X-Consul-Lastcontact", "Content-Type"} {
		a, b := m.header.Get(h), r.header.Get(h)
		if h == "Content-Type" && len(r.body) == 0 {
			continue
		}
		if a != b {
			w.t.Errorf("%s: model %q, server %q", h, a, b)
		}
	}
	var x, y any
	if json.Unmarshal(m.body, &x) == nil && json.Unmarshal(r.body, &y) == nil {
		w.compare(x, y, "")
	} else {
		w.text(strings.TrimSpace(string(m.body)), strings.TrimSpace(string(r.body)), "body")
	}
	return m, r
}

// compare walks through two JSON values.
func (w *twins) compare(m, r any, at string) {
	switch x := m.(type) {
	case map[string]any:
		y, ok := r.(map[string]any)
		if !ok {
			break
		}
		for k := range x {
			if _, ok := y[k]; !ok {
				w.t.Errorf("%s.%s is only in the model's answer", at, k)
			}
		}
		for k, v := range y {
			u, ok := x[k]
			switch {
			case !ok:
				w.t.Errorf("%s.%s is only in the server's answer", at, k)
			case k == "Node": // names differ
			case k == "CreateIndex" || k == "ModifyIndex":
				w.index(fmt.Sprint(u), fmt.Sprint(v), at+"."+k)
			default:
				w.compare(u, v, at+"."+k)
			}
		}
		return
	case []any:
		y, ok := r.([]any)
		if !ok || len(x) != len(y) {
			break
		}
		for i := range x {
			w.compare(x[i], y[i], fmt.Sprintf("%s[%d]", at, i))
		}
		return
	case string:
		if y, ok := r.(string); ok {
			w.text(x, y, at)
			return
		}
	default:
		if m == r {
			return
		}
	}
	w.t.Errorf("%s: model %v, server %v", at, m, r)
}

var indexRE = regexp.MustCompile(`current modify index (\d+)`)

// text compares two texts after putting in each other's ids and indexes.
func (w *twins) text(m, r, at string) {
	if a, b := indexRE.FindStringSubmatch(m), indexRE.FindStringSubmatch(r); a != nil && b != nil {
		w.index(a[1], b[1], at)
		m, _, _ = strings.Cut(m, "current modify")
		r, _, _ = strings.Cut(r, "current modify")
	}
	for _, s := range w.sessions {
		m = strings.ReplaceAll(m, s[0], s[1])
	}
	if m != r {
		if uuidRE.MatchString(m) && uuidRE.MatchString(r) && at == ".ID" {
			return // a new session
		}
		w.t.Errorf("%s: model %q, server %q", at, m, r)
	}
}

var uuidRE = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// index notes that two indexes are the same.
func (w *twins) index(m, r, at string) {
	if m == "" && r == "" {
		return
	}
	if x, ok := w.toReal[m]; ok && x != r {
		w.t.Errorf("%s: index %s of the model is %s and %s on the server", at, m, x, r)
	}
	if x, ok := w.toModel[r]; ok && x != m {
		w.t.Errorf("%s: index %s of the server is %s and %s in the model", at, r, x, m)
	}
	if _, ok := w.toReal[m]; !ok {
		for a, b := range w.toReal {
			if before(a, m) != before(b, r) {
				w.t.Errorf("%s: the order of %s and %s in the model isn't that of %s and %s on the server", at, a, m, b, r)
			}
		}
		w.indexes = append(w.indexes, [2]string{m, r})
	}
	w.toReal[m], w.toModel[r] = r, m
}

func before(a, b string) bool {
	x, _ := strconv.ParseFloat(a, 64)
	y, _ := strconv.ParseFloat(b, 64)
	return x < y
}
