package consulsession

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// diagnose runs Doctor and returns what it found, as "check status: what | hint".
func diagnose(t *testing.T, ctx context.Context, c Config) (found []string, worst Status) {
	t.Helper()
	if c.Client.Addresses == nil {
		c.Client.Addresses = []string{"127.0.0.1:8500"}
	}
	n := contender(t, c)
	defer n.Close()
	n.Doctor(ctx, func(f Finding) {
		word := [...]string{"ok", "warn", "IMPOSSIBLE", "DENIED", "UNREACHABLE"}[f.Status]
		found = append(found, fmt.Sprintf("%s %s: %s | %s", f.Check, word, f.What, f.Hint))
		worst = max(worst, f.Status)
	})
	return found, worst
}

// wantFinding checks that there is one finding that begins with start and has all of words.
func wantFinding(t *testing.T, found []string, start string, words ...string) {
	t.Helper()
	for _, f := range found {
		if strings.HasPrefix(f, start) && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(f, w) }) {
			return
		}
	}
	t.Errorf("no finding %q with %q in:\n%s", start, words, strings.Join(found, "\n"))
}

// wantEmpty: neither a session nor a key of Doctor's is left.
func wantEmpty(t *testing.T, m *consulmodel.Model) {
	t.Helper()
	if s := m.Sessions(); len(s) > 0 {
		t.Errorf("sessions are left: %v", s)
	}
	for _, k := range m.Keys() {
		if strings.Contains(k.Key, "~doctor") {
			t.Errorf("key %s is left", k.Key)
		}
	}
}

func TestDoctorHealthy(t *testing.T) {
	for _, name := range []string{testName, ""} {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			c := config(m.Transport(nil))
			c.Name = name
			found, worst := diagnose(t, t.Context(), c)
			if worst != StatusWarn { // the model is a server
				t.Errorf("worst %v: %q", worst, found)
			}
			for _, start := range []string{"consul ok: Consul 1.14.11 at http://127.0.0.1:8500 (dc1, leader 127.0.0.1:8300)", "agent warn: the agent node-1 is a server",
				"keys ok", "watch ok", "lock ok", "latency ok", "session ok"} {
				wantFinding(t, found, start)
			}
			if n := m.Requests().Total(); n > 20 {
				t.Errorf("%d requests", n)
			}
			wantEmpty(t, m)
			if len(m.Keys()) > 0 {
				t.Errorf("keys are left: %v", m.Keys())
			}
		})
	}
}

// Nothing is left by a Doctor that is told to stop, at any request; and one that is killed (its
// last requests never come) leaves nothing when its session has ended.
func TestDoctorLeavesNothing(t *testing.T) {
	for _, killed := range []bool{false, true} {
		for n := range 18 {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				dead := false
				rt := m.Transport(func(r *consulmodel.Request) (p consulmodel.Plan) {
					if r.N == n {
						cancel()
						dead = killed
					}
					p.DropRequest = dead
					return p
				})
				found, _ := diagnose(t, ctx, config(rt))
				for _, f := range found {
					if !strings.Contains(f, " ok: ") && !strings.HasPrefix(f, "agent warn") {
						t.Errorf("stopped at request %d: found %s", n, f)
					}
				}
				if killed {
					time.Sleep(time.Minute) // twice the TTL, and more
				} else {
					synctest.Wait()
				}
				wantEmpty(t, m)
			})
		}
	}
}

// To be told to stop while the session is being made doesn't leave it.
func TestDoctorStoppedAtCreate(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		ctx, cancel := context.WithCancel(t.Context())
		found, _ := diagnose(t, ctx, config(m.Transport(func(r *consulmodel.Request) (p consulmodel.Plan) {
			if r.Endpoint == consulmodel.SessionCreate {
				p.AnswerDelay = 100 * time.Millisecond
				go func() { time.Sleep(50 * time.Millisecond); cancel() }()
			}
			return p
		})))
		if strings.Contains(strings.Join(found, "\n"), "\nsession ") {
			t.Errorf("found %q", found)
		}
		wantEmpty(t, m)
	})
}

func TestDoctorUnreachable(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		refuse := func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Refuse: consulmodel.ErrRefused} }
		found, worst := diagnose(t, t.Context(), config(m.Transport(refuse)))
		if worst != StatusUnreachable || len(found) != 1 {
			t.Errorf("%v %q", worst, found)
		}
		wantFinding(t, found, "consul UNREACHABLE", "connection refused", "curl http://127.0.0.1:8500/v1/status/leader")

		start := time.Now()
		hang := func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{DropRequest: true} }
		found, _ = diagnose(t, t.Context(), config(m.Transport(hang)))
		wantFinding(t, found, "consul UNREACHABLE", "no answer in time")
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("it took %v, want one --poll", d)
		}
		for _, p := range []consulmodel.Plan{{Status: 200, Body: "<html>"}, {Status: 404, Body: "no such page"}, {Status: 302}} {
			found, _ = diagnose(t, t.Context(), config(m.Transport(func(*consulmodel.Request) consulmodel.Plan { return p })))
			wantFinding(t, found, "consul UNREACHABLE", "it does not answer as Consul does")
		}
		m.LoseLeader()
		found, _ = diagnose(t, t.Context(), config(m.Transport(nil)))
		wantFinding(t, found, "consul UNREACHABLE", "it knows no leader")
	})
}

// Of several addresses one is enough, and the others are named.
func TestDoctorSeveralAddresses(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		c := config(byHost{"good:8500": m.Transport(nil), "bad:8500": m.Transport(func(*consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{Refuse: consulmodel.ErrRefused}
		})})
		c.Client.Addresses = []string{"bad:8500", "good:8500", "bad:8500"}
		found, worst := diagnose(t, t.Context(), c)
		if worst != StatusWarn {
			t.Errorf("%v: %q", worst, found)
		}
		wantFinding(t, found, "consul warn", "http://bad:8500")
		wantFinding(t, found, "consul ok", "http://good:8500")
		wantFinding(t, found, "session ok")
		c.Client.Addresses = []string{"bad:8500", "bad:8500"}
		if _, worst := diagnose(t, t.Context(), c); worst != StatusUnreachable {
			t.Errorf("worst %v", worst)
		}
		wantEmpty(t, m)
	})
}

type byHost map[string]http.RoundTripper

func (h byHost) RoundTrip(r *http.Request) (*http.Response, error) { return h[r.URL.Host].RoundTrip(r) }

// agentRT answers /v1/agent/self and /v1/acl/token/self in the place of the model, and dates
// all answers.
type agentRT struct {
	http.RoundTripper
	self, token string
	clock       time.Duration // ahead of ours
}

func (a agentRT) RoundTrip(r *http.Request) (*http.Response, error) {
	for path, body := range map[string]string{"/v1/agent/self": a.self, "/v1/acl/token/self": a.token} {
		if r.URL.Path == path && body != "" {
			f := func(*consulmodel.Request) consulmodel.Plan { return consulmodel.Plan{Status: 200, Body: body} }
			return a.dated(consulmodel.New(consulmodel.Options{}).Transport(f).RoundTrip(r))
		}
	}
	return a.dated(a.RoundTripper.RoundTrip(r))
}

func (a agentRT) dated(resp *http.Response, err error) (*http.Response, error) {
	if err == nil {
		resp.Header.Set("Date", time.Now().Add(a.clock).UTC().Format(http.TimeFormat))
	}
	return resp, err
}

func TestDoctorAgent(t *testing.T) {
	const self = `{"Config":{"Datacenter":"east","NodeName":"web-1","Version":%q,"Server":%v},"DebugConfig":{"LeaveOnTerm":%v}}`
	for _, test := range []struct {
		version        string
		server, leaves bool
		node           string
		want           []string
	}{
		{"1.22.1", false, false, "", []string{"consul ok: Consul 1.22.1 at http://127.0.0.1:8500 (east", "agent ok: web-1 is a client agent"}},
		{"1.14.11", true, false, "", []string{"agent warn: the agent web-1 is a server"}},
		{"1.14.11", false, true, "", []string{"agent warn: the agent web-1 leaves the cluster on SIGTERM"}},
		{"1.14.11", true, true, "locks", []string{"agent ok: sessions belong to the node locks"}},
		{"1.7.14", false, false, "", []string{"consul warn: Consul 1.7.14 is older than 1.8"}},
		{"1.8.0+ent", false, false, "", []string{"agent ok"}},
		{"2.0.0", false, false, "", []string{"agent ok"}},
	} {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			m.RegisterNode("locks")
			c := config(agentRT{RoundTripper: m.Transport(nil), self: fmt.Sprintf(self, test.version, test.server, test.leaves)})
			c.SessionNode = test.node
			found, worst := diagnose(t, t.Context(), c)
			for _, w := range test.want {
				wantFinding(t, found, w)
				if strings.Contains(w, " ok: web-1") && worst != StatusOK {
					t.Errorf("%v: %q", worst, found)
				}
			}
			if old := test.version == "1.7.14"; !old && slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, "is older") }) {
				t.Errorf("%s is called old", test.version)
			}
		})
	}
}

func TestDoctorClock(t *testing.T) {
	for skew, want := range map[time.Duration]string{
		0: "clock ok", 1900 * time.Millisecond: "clock ok", -1900 * time.Millisecond: "clock ok",
		4200 * time.Millisecond: "clock warn: this host's clock is about 4", -4200 * time.Millisecond: "clock warn: this host's clock is about 4",
		-24 * time.Hour: "clock warn: this host's clock is about 2", 400 * 24 * time.Hour: "clock warn: this host's clock is about 9600h",
	} {
		inBubble(t, func(t *testing.T, m *consulmodel.Model) {
			time.Sleep(300 * time.Millisecond) // not at a whole second
			c := config(agentRT{RoundTripper: m.Transport(func(*consulmodel.Request) consulmodel.Plan {
				return consulmodel.Plan{RequestDelay: 60 * time.Millisecond, AnswerDelay: 60 * time.Millisecond}
			}), clock: skew})
			c.Client.Addresses = []string{"consul.example.com:8500"}
			found, _ := diagnose(t, t.Context(), c)
			word := ""
			if strings.Contains(want, "warn") {
				word = map[bool]string{true: "behind", false: "ahead"}[skew > 0]
			}
			wantFinding(t, found, want, word)
		})
	}
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		found, _ := diagnose(t, t.Context(), config(agentRT{RoundTripper: m.Transport(nil)}))
		wantFinding(t, found, "clock ok: the agent is on this host")
	})
}

// Each answer narrows the bounds; a clock that is set meanwhile begins anew.
func TestClockBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b clockBounds
		note := func(skew time.Duration) {
			h := http.Header{}
			h.Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
			b.note(&http.Response{Header: h}, time.Now())
		}
		for range 10 {
			note(4200 * time.Millisecond)
			time.Sleep(700 * time.Millisecond)
		}
		if b.min > 4200*time.Millisecond || b.max < 4200*time.Millisecond || b.max-b.min > 200*time.Millisecond {
			t.Errorf("between %v and %v, want 4.2s", b.min, b.max)
		}
		note(-time.Hour)
		if b.max > -time.Hour+time.Second || b.min < -time.Hour-time.Second {
			t.Errorf("between %v and %v, want an hour less", b.min, b.max)
		}
		b.note(&http.Response{Header: http.Header{}}, time.Now())
	})
}

func TestDoctorToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("secret-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name         string
		env, flag    string
		file         bool
		ends         time.Duration // 0: never
		want, hint   string
		unknownToken bool
	}{
		{name: "file", file: true, want: "token ok: the token of " + file + " (accessor acc-1), without an end"},
		{name: "file that ends late", file: true, ends: 48 * time.Hour, want: "token ok: the token of " + file},
		{name: "file that ends soon", file: true, ends: 3 * time.Hour, want: "token warn: the token of " + file, hint: "ends in 3h0m0s"},
		{name: "variable", env: "secret-2", want: "token warn: the token of CONSUL_HTTP_TOKEN (accessor acc-1) can't be replaced", hint: "CONSUL_HTTP_TOKEN_FILE"},
		{name: "variable that ends soon", env: "secret-2", ends: time.Hour, want: "token warn: the token of CONSUL_HTTP_TOKEN", hint: "ends in 1h0m0s"},
		{name: "flag", flag: "secret-3", want: "token warn: the token of --token (accessor acc-1)", hint: "list of processes"},
		{name: "unknown", env: "secret-4", unknownToken: true, want: "token DENIED", hint: "doesn't know this token"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("CONSUL_HTTP_TOKEN", test.env)
			synctest.Test(t, func(t *testing.T) {
				m := consulmodel.New(consulmodel.Options{Seed: 1, NoJitter: true})
				token := `{"AccessorID":"acc-1","SecretID":"secret"}`
				if test.ends != 0 {
					token = fmt.Sprintf(`{"AccessorID":"acc-1","SecretID":"secret","ExpirationTime":%q}`, time.Now().Add(test.ends).UTC().Format(time.RFC3339Nano))
				}
				var rt http.RoundTripper = agentRT{RoundTripper: m.Transport(nil), token: token}
				if test.unknownToken {
					rt = m.Transport(func(r *consulmodel.Request) (p consulmodel.Plan) {
						if r.Endpoint == consulmodel.Unknown {
							p.Status, p.Body = 403, "ACL not found"
						}
						return p
					})
				}
				c := config(rt)
				c.Client.Token = test.flag
				if test.file {
					c.Client.TokenFile = file
				}
				found, _ := diagnose(t, t.Context(), c)
				wantFinding(t, found, test.want, test.hint)
				if all := strings.Join(found, "\n"); strings.Contains(all, "secret") {
					t.Errorf("a secret is shown: %s", all)
				}
			})
		})
	}
}

// A slow Consul, blocking reads that don't block, and some that are cut off.
func TestDoctorSlowness(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		found, worst := diagnose(t, t.Context(), config(m.Transport(func(*consulmodel.Request) consulmodel.Plan {
			return consulmodel.Plan{AnswerDelay: 501 * time.Millisecond}
		})))
		wantFinding(t, found, "latency warn: a check of the lock took 501ms")
		if worst != StatusWarn {
			t.Errorf("%v: %q", worst, found)
		}
		found, _ = diagnose(t, t.Context(), config(m.Transport(func(r *consulmodel.Request) (p consulmodel.Plan) {
			p.DropAnswer = r.Blocking
			return p
		})))
		wantFinding(t, found, "watch warn: a blocking read saw no change: no answer in time")
		wantFinding(t, found, "lock ok")
		found, _ = diagnose(t, t.Context(), config(m.Transport(func(r *consulmodel.Request) (p consulmodel.Plan) {
			if r.Blocking {
				p.Status, p.Body = 200, "[]"
			}
			return p
		})))
		wantFinding(t, found, "watch warn: a blocking read came back before there was a change")
		wantEmpty(t, m)
	})
}

func TestDoctorSettings(t *testing.T) {
	inBubble(t, func(t *testing.T, m *consulmodel.Model) {
		for _, set := range []func(*Config){
			func(c *Config) { c.TTL = 9 * time.Second }, func(c *Config) { c.SessionNode = "no-such-node" }, func(c *Config) { c.Checks = []string{"no-such-check"} },
		} {
			c := config(m.Transport(nil))
			set(&c)
			found, worst := diagnose(t, t.Context(), c)
			if worst != StatusImpossible {
				t.Errorf("%v: %q", worst, found)
			}
			wantFinding(t, found, "session IMPOSSIBLE", "are --ttl, --check, --session-node and --datacenter right?")
		}
		wantEmpty(t, m)
	})
}

// What is in the keys of a lock already.
func TestDoctorLooksAtName(t *testing.T) {
	const dir = "onlyone/" + testName + "/"
	newer := string(encode(PeriodRecord{Schema: Schema + 1, Period: "p", State: periodEnded}))
	period := string(encode(PeriodRecord{Schema: 1, Period: "2026-11-29T03:00:00Z", State: periodEnded, Host: "h2"}))
	for _, test := range []struct {
		name string
		set  func(m *consulmodel.Model)
		want []string
	}{
		{"nothing", func(*consulmodel.Model) {}, []string{"name ok: team/job was never held"}},
		{"foreign key", func(m *consulmodel.Model) { m.PutKey(dir+".lock", "precious") },
			[]string{"name IMPOSSIBLE: key " + dir + ".lock is not a lock: its flags are 0x0", "kv delete"}},
		{"consul lock", func(m *consulmodel.Model) {
			m.Acquire(dir+".lock", m.CreateSession(time.Hour, 0), "")
		}, []string{"name ok: team/job is held by the session", "which isn't onlyone's"}},
		{"paused", func(m *consulmodel.Model) {
			m.PutKey(dir+".paused", `{"schema":1,"by":"ops@web-2","reason":"repair\nof"}`)
		},
			[]string{"paused warn: team/job is paused by ops@web-2 (repair of): nobody may start", "onlyone resume team/job"}},
		{"paused by garbage", func(m *consulmodel.Model) { m.PutKey(dir+".paused", "x") }, []string{"paused warn"}},
		{"paused until now", func(m *consulmodel.Model) {
			m.PutKey(dir+".paused", `{"schema":1,"until":"1999-01-01T00:00:00Z"}`)
		}, []string{"name ok"}},
		{"period", func(m *consulmodel.Model) { m.PutKey(dir+".period", period) }, []string{"period ok: team/job: 2026-11-29T03:00:00Z ended, by h2"}},
		{"period of a newer one", func(m *consulmodel.Model) { m.PutKey(dir+".period", newer) }, []string{"period warn", "its schema is 2", "--once-per would refuse", "consul kv get " + dir + ".period"}},
		{"period garbage", func(m *consulmodel.Model) { m.PutKey(dir+".period", "x") }, []string{"period warn", "it isn't JSON of onlyone's"}},
		{"runs garbage", func(m *consulmodel.Model) { m.PutKey(dir+".runs", "x") }, []string{"runs warn", "the next run replaces it"}},
		{"runs of a newer one", func(m *consulmodel.Model) { m.PutKey(dir+".runs", `{"schema":2}`) }, []string{"runs warn", "has schema 2"}},
		{"copies", func(m *consulmodel.Model) {
			m.PutKey(dir+".copies", `{"schema":1,"copies":2,"by":"h1","since":"2026"}`)
			m.PutKey(dir+"1/.period", "x")
		}, []string{"copies ok: team/job has 2 copies, says h1"}},
		{"a copy's period", func(m *consulmodel.Model) {
			m.PutKey(dir+".copies", `{"schema":1,"copies":2,"by":"h1","since":"2026"}`)
			m.PutKey(dir+"1/.period", "x")
		}, []string{"period warn", dir + "1/.period"}},
		{"copies garbage", func(m *consulmodel.Model) { m.PutKey(dir+".copies", "2") }, []string{"copies warn", "--copies would refuse"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, m *consulmodel.Model) {
				test.set(m)
				before := m.Keys()
				found, _ := diagnose(t, t.Context(), config(m.Transport(nil)))
				wantFinding(t, found, test.want[0], test.want[1:]...)
				if after := m.Keys(); fmt.Sprint(before) != fmt.Sprint(after) {
					t.Errorf("the keys were %v and are %v", before, after)
				}
			})
		})
	}
	inBubble(t, func(t *testing.T, m *consulmodel.Model) { // a holder of ours, one waiting, then a clean end
		holder, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		waits, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _, _ = contender(t, config(m.Transport(nil))).Acquire(waits, always) }()
		time.Sleep(time.Second)
		found, _ := diagnose(t, t.Context(), config(m.Transport(nil)))
		wantFinding(t, found, "name ok: team/job is held by h1 (pid 1) since", "; 1 waiting")
		if _, err := holder.Check(t.Context()); err != nil {
			t.Errorf("the holder: %v", err)
		}
		cancel()
		<-done
		if err := holder.Release(t.Context(), Ended{}); err != nil {
			t.Error(err)
		}
		found, _ = diagnose(t, t.Context(), config(m.Transport(nil)))
		wantFinding(t, found, "name ok: team/job is free; h1 had it last")
	})
	inBubble(t, func(t *testing.T, m *consulmodel.Model) { // a holder that had to queue isn't waiting any more
		first, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan *Term)
		go func() {
			term, err := contender(t, config(m.Transport(nil))).Acquire(t.Context(), always)
			if err != nil {
				t.Error(err)
			}
			second <- term
		}()
		time.Sleep(time.Second)
		if err := first.Release(t.Context(), Ended{}); err != nil {
			t.Error(err)
		}
		term := <-second
		found, _ := diagnose(t, t.Context(), config(m.Transport(nil)))
		wantFinding(t, found, "name ok: team/job is held by h1 (pid 1) since", "; 0 waiting")
		if err := term.Release(t.Context(), Ended{}); err != nil {
			t.Error(err)
		}
	})
}
