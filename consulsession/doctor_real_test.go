package consulsession

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consultest"
)

// onReal is a contender of a real server.
func onReal(s *consultest.Server, token, name string) Config {
	c := config(nil)
	c.Client = ClientConfig{Addresses: []string{s.Addr}, Token: token}
	c.Name = name
	return c
}

// tokenWith makes a token with policies of these rules.
func tokenWith(t *testing.T, s *consultest.Server, rules ...string) string {
	t.Helper()
	var links []*api.ACLTokenPolicyLink
	for _, r := range rules {
		p, _, err := s.Client().ACL().PolicyCreate(&api.ACLPolicy{Name: fmt.Sprintf("doctor-%d", rand.Int64()), Rules: r}, nil)
		if err != nil {
			t.Fatalf("%s: %v", r, err)
		}
		links = append(links, &api.ACLTokenPolicyLink{ID: p.ID})
	}
	token, _, err := s.Client().ACL().TokenCreate(&api.ACLToken{Policies: links, ExpirationTTL: 5 * time.Hour}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return token.SecretID
}

// wantNoTrace: nothing of Doctor's is on the server, and keys are as they were.
func wantNoTrace(t *testing.T, s *consultest.Server, keys string) {
	t.Helper()
	list, _, err := s.Client().Session().List(&api.QueryOptions{RequireConsistent: true})
	if err != nil || len(list) > 0 {
		t.Errorf("sessions are left: %v, %v", list, err)
	}
	if now := allKeys(t, s); now != keys {
		t.Errorf("the keys were %s and are %s", keys, now)
	}
}

func allKeys(t *testing.T, s *consultest.Server) string {
	t.Helper()
	kvs, _, err := s.Client().KV().List("", &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, kv := range kvs {
		all += fmt.Sprintf("%s@%d=%s ", kv.Key, kv.ModifyIndex, kv.Value)
	}
	return all
}

var addRule = regexp.MustCompile(`DENIED: .* \| add to the token's policy: ([^\n]*)`)

// With one right missing after the other, the rule that is printed is the one that is missing,
// and with it all works.
func TestDoctorRules(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Consul servers")
	}
	const (
		session = `session_prefix "" { policy = "write" }`
		keys    = `key_prefix "onlyone/a/b/" { policy = "write" }`
		all     = `key_prefix "onlyone/" { policy = "write" }`
		rest    = `key "onlyone/a/b/.lock" { policy = "write" } key "onlyone/a/b/.holder" { policy = "write" } key "onlyone/a/b/.runs" { policy = "write" } key "onlyone/a/b/.paused" { policy = "write" } key "onlyone/a/b/.step-down" { policy = "write" }`
	)
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, ACL: true})
		// The keys of a lock are there: what is tried doesn't change them.
		holder, err := contender(t, onReal(s, consultest.RootToken, "a/b")).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		if err := holder.Release(t.Context(), Ended{Started: time.Now(), Ended: time.Now(), Outcome: "exited"}); err != nil {
			t.Fatal(err)
		}
		before := allKeys(t, s)
		for _, test := range []struct {
			what  string
			name  string
			rules []string
			want  []string
		}{
			{"nothing", "a/b", []string{`key_prefix "other/" { policy = "write" }`}, []string{session, keys}},
			{"no session", "a/b", []string{keys}, []string{session}},
			{"sessions to read", "a/b", []string{keys, `session_prefix "" { policy = "read" }`}, []string{session}},
			{"no keys", "a/b", []string{session}, []string{keys}},
			{"keys to read", "a/b", []string{session, `key_prefix "onlyone/a/" { policy = "read" }`}, []string{keys}},
			{"another lock's keys", "a/b", []string{session, `key_prefix "onlyone/a/c/" { policy = "write" }`}, []string{keys}},
			{"one key denied", "a/b", []string{session, keys + ` key "onlyone/a/b/.runs" { policy = "read" }`}, []string{`key "onlyone/a/b/.runs" { policy = "write" }`}},
			{"two kinds denied", "a/b", []string{session, keys + ` key_prefix "onlyone/a/b/~queue/" { policy = "read" } key "onlyone/a/b/.lock" { policy = "read" }`},
				[]string{`key "onlyone/a/b/.lock" { policy = "write" } key_prefix "onlyone/a/b/~queue/" { policy = "write" }`}},
			{"key by key", "a/b", []string{session, rest}, []string{`key_prefix "onlyone/a/b/~doctor/" { policy = "write" } key "onlyone/a/b/.period" { policy = "write" } key_prefix "onlyone/a/b/~queue/" { policy = "write" }`}},
			{"all but doctor's", "a/b", []string{session, rest, `key "onlyone/a/b/.period" { policy = "write" } key_prefix "onlyone/a/b/~queue/" { policy = "write" }`}, nil},
			{"no name, no keys", "", []string{session}, []string{all}},
			{"no name, one lock's keys", "", []string{session, keys}, []string{all}},
			{"no name, all", "", []string{session, all}, nil},
			{"all that is needed", "a/b", []string{session, keys}, nil},
		} {
			found, worst := diagnose(t, t.Context(), onReal(s, tokenWith(t, s, test.rules...), test.name))
			var rules []string
			for _, f := range found {
				if m := addRule.FindStringSubmatch(f); m != nil {
					rules = append(rules, m[1])
				}
			}
			if fmt.Sprint(rules) != fmt.Sprint(test.want) || (worst == StatusDenied) != (len(test.want) > 0) || worst > StatusDenied {
				t.Errorf("%s: rules %q, want %q; found %q", test.what, rules, test.want, found)
			}
			wantNoTrace(t, s, before)
			if len(rules) == 0 {
				continue
			}
			c := onReal(s, tokenWith(t, s, append(test.rules, rules...)...), test.name)
			found, worst = diagnose(t, t.Context(), c)
			if worst > StatusWarn {
				t.Errorf("%s: with the rules added: %q", test.what, found)
			}
			wantFinding(t, found, "lock ok")
			wantFinding(t, found, "watch ok")
			wantFinding(t, found, "session ok")
			wantNoTrace(t, s, before)
		}
		// What it calls enough is enough for a run.
		c := onReal(s, tokenWith(t, s, session, keys), "a/b")
		term, err := contender(t, c).Acquire(t.Context(), always)
		if err != nil {
			t.Fatal(err)
		}
		if err := term.Release(t.Context(), Ended{Started: time.Now(), Ended: time.Now(), Outcome: "exited"}); err != nil {
			t.Error(err)
		}
	})
}

func TestDoctorOnReal(t *testing.T) {
	if testing.Short() {
		t.Skip("starts Consul servers")
	}
	consultest.Each(t, func(t *testing.T, version string) {
		s := consultest.Start(t, consultest.Options{Version: version, ACL: true})
		minimal := tokenWith(t, s, `key_prefix "onlyone/" { policy = "write" } session_prefix "" { policy = "write" }`)
		found, worst := diagnose(t, t.Context(), onReal(s, minimal, "x"))
		if worst != StatusWarn {
			t.Errorf("%v: %q", worst, found)
		}
		wantFinding(t, found, "consul ok: Consul at http://"+s.Addr+" (leader 127.0.0.1:")
		wantFinding(t, found, "agent warn: the token may not ask", `agent_prefix "" { policy = "read" }`)
		wantFinding(t, found, "token warn: the token of --token", "(accessor ", ") ends in ", "list of processes")
		wantFinding(t, found, "watch ok")
		wantFinding(t, found, "latency ok")
		wantFinding(t, found, "clock ok")

		seeing := tokenWith(t, s, `agent_prefix "" { policy = "read" } key_prefix "onlyone/" { policy = "write" } session_prefix "" { policy = "write" }`)
		found, _ = diagnose(t, t.Context(), onReal(s, seeing, "x"))
		wantFinding(t, found, "consul ok: Consul "+version, "(dc1, leader 127.0.0.1:")
		wantFinding(t, found, "agent warn: the agent consultest is a server")

		found, worst = diagnose(t, t.Context(), onReal(s, "00000000-0000-0000-0000-00000000dead", "x"))
		wantFinding(t, found, "token DENIED", "Consul doesn't know this token")
		if worst != StatusDenied {
			t.Errorf("%v: %q", worst, found)
		}
		found, _ = diagnose(t, t.Context(), onReal(s, "", "x"))
		wantFinding(t, found, "token ok: there is none")
		wantFinding(t, found, "keys DENIED")

		// Interrupted at any instant: nothing is left.
		for i := range 12 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*time.Millisecond)
			diagnose(t, ctx, onReal(s, minimal, "x"))
			cancel()
		}
		wantNoTrace(t, s, "")
		if keys := s.Keys(t, ""); len(keys) > 0 {
			t.Errorf("keys are left: %s", strings.Join(keys, " "))
		}
	})
}
