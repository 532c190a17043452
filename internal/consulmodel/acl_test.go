package consulmodel_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// Tokens of aclTable. In its texts $l and $r are the accessor ids of lock and reader, $n is the node.
const (
	nobody = "nobody" // no token, nothing is allowed
	gone   = "gone"   // a token that was deleted
	reader = "reader" // may read $k and below
	locker = "lock"   // what onlyone asks for: key $k write, session of the node write
)

const anonymous = "00000000-0000-0000-0000-000000000002"

// denied is 1.14's text; 1.8 says no more than "Permission denied".
func denied(accessor, right, name string) string {
	return fmt.Sprintf(`Permission denied: token with AccessorID '%s' lacks permission '%s' on "%s"`, accessor, right, name)
}

func deniedWhat(i int, accessor, right, name string) string {
	return fmt.Sprintf(`{"Results":null,"Errors":[{"OpIndex":%d,"What":%q}]}`, i, denied(accessor, right, name))
}

const denied8 = "Permission denied"

var aclTable = testCase{"acl", []step{
	{as: locker, do: "PUT /v1/session/create", body: `{"TTL":"60s","LockDelay":"0s","NodeChecks":[]}`, save: "a=ID"},
	{as: locker, do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`)), json: `{"Errors":null}`},
	{as: locker, do: "PUT /v1/session/renew/$a", json: `"some"`},
	{as: locker, do: "GET /v1/session/info/$a", json: `"some"`},
	{as: locker, do: "GET /v1/agent/self", status: 403, text: denied("$l", "agent:read", "$n"), text8: denied8},
	{as: locker, do: "PUT /v1/kv/other", status: 403, text: denied("$l", "key:write", "other"), text8: denied8},
	{as: locker, do: "PUT /v1/txn", body: txn(kv("get", "$k"), kv("set", "other"), kv("unlock", "$k", `"Session":"$a"`)), status: 409, json: deniedWhat(1, "$l", "key:write", "other"), only: "1.14"},
	{as: locker, do: "PUT /v1/txn", body: txn(kv("get", "$k"), kv("set", "other"), kv("unlock", "$k", `"Session":"$a"`)), status: 409, json: what(1, denied8), only: "1.8"},
	{as: reader, do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), json: `{"Results":[{"KV":{"Session":"$a"}}],"Errors":null}`},
	{as: reader, do: "PUT /v1/txn", body: txn(kv("check-not-exists", "$k/none")), status: 409, json: deniedWhat(0, "$r", "key:write", "$k/none"), only: "1.14"},
	{as: reader, do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`)), status: 409, json: deniedWhat(0, "$r", "key:write", "$k"), only: "1.14"},
	{as: reader, do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`)), status: 409, json: what(0, denied8), only: "1.8"},
	{as: reader, do: "GET /v1/kv/$k", json: `[{"Session":"$a"}]`},
	{as: reader, do: "PUT /v1/kv/$k?release=$a", status: 403, text: denied("$r", "key:write", "$k"), text8: denied8},
	{as: reader, do: "DELETE /v1/kv/$k", status: 403, text: denied("$r", "key:write", "$k"), text8: denied8},
	{as: reader, do: "DELETE /v1/kv/$k?recurse", status: 403, text: denied("$r", "key:write", "$k"), text8: denied8},
	{as: reader, do: "PUT /v1/session/create", status: 403, text: denied("$r", "session:write", "$n"), text8: denied8},
	{as: reader, do: "PUT /v1/session/renew/$a", status: 403, text: denied("$r", "session:write", "$n"), text8: denied8},
	{as: reader, do: "PUT /v1/session/destroy/$a", status: 403, text: denied("$r", "session:write", "$n"), text8: denied8},
	{as: reader, do: "GET /v1/session/info/$a", text: "[]"},
	{as: reader, do: "GET /v1/session/list", text: "[]"},
	{as: nobody, do: "GET /v1/kv/$k", status: 403, text: denied(anonymous, "key:read", "$k"), text8: denied8},
	{as: nobody, do: "GET /v1/kv/$k?recurse", status: 404},
	{as: nobody, do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), status: 409, json: deniedWhat(0, anonymous, "key:read", "$k"), only: "1.14"},
	{as: nobody, do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), status: 409, json: what(0, denied8), only: "1.8"},
	{as: nobody, do: "PUT /v1/txn", body: txn(kv("get", "$k"), kv("get-tree", "$k")), json: `{"Results":[],"Errors":null}`},
	{as: nobody, do: "PUT /v1/session/renew/6b86b273-ff34-fce1-9d6b-804eff5a3f57", status: 404},
	{as: gone, do: "GET /v1/kv/$k", status: 403, text: "ACL not found"},
	{as: gone, do: "PUT /v1/session/renew/$a", status: 403, text: "ACL not found"},
	{as: gone, do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), status: 403, text: "ACL not found"},
	{as: gone, do: "PUT /v1/txn", body: txn(kv("set", "$k")), status: 403, text: "ACL not found"},
	{as: gone, do: "PUT /v1/session/create", status: 403, text: "ACL not found"},
	{as: gone, do: "GET /v1/status/leader", status: 200},
	{as: locker, do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`)), json: `{"Errors":null}`},
	{as: locker, do: "PUT /v1/session/destroy/$a", text: "true"},
}}

func TestACLModel(t *testing.T) {
	for _, v := range []string{"1.14", "1.8"} {
		t.Run(v, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := runner{t: t, version: v, base: "http://127.0.0.1:8500", tokens: map[string]string{nobody: "", gone: gone, reader: reader, locker: locker}}
				opts := consulmodel.Options{ACL: func(token string, right consulmodel.Right, name string) bool {
					switch {
					case token == gone:
						return false
					case right == consulmodel.TokenExists:
						return true
					case token == reader:
						return right == consulmodel.KeyRead && strings.HasPrefix(name, r.vars["k"])
					case token == locker && name == r.vars["k"]:
						return right == consulmodel.KeyRead || right == consulmodel.KeyWrite
					case token == locker && name == "node-1":
						return right == consulmodel.SessionRead || right == consulmodel.SessionWrite
					}
					return false
				}}
				if v == "1.8" {
					opts.Version = consulmodel.V1_8
				}
				r.client = &http.Client{Transport: consulmodel.New(opts).Transport(nil)}
				r.vars = map[string]string{"l": "00000000-0000-0000-0000-00000000000a", "r": "00000000-0000-0000-0000-00000000000a", "n": "node-1"}
				r.run(aclTable)
			})
		})
	}
}

// TestACLServer needs an agent with acl { enabled = true, default_policy = "deny" }.
func TestACLServer(t *testing.T) {
	addr, management := os.Getenv("CONSUL_TABLE_ACL_ADDR"), os.Getenv("CONSUL_TABLE_ACL_TOKEN")
	if addr == "" {
		t.Skip("CONSUL_TABLE_ACL_ADDR is unset: set it to host:port of a Consul dev agent with ACLs that deny by default, and CONSUL_TABLE_ACL_TOKEN to its management token")
	}
	r := runner{t: t, base: "http://" + addr, client: &http.Client{Timeout: 15 * time.Second}, token: management}
	var self struct {
		Config struct{ Version, NodeName string }
	}
	ask := func(method, path string, in, out any) {
		b, _ := json.Marshal(in)
		a := r.do(method, path, string(b))
		if a.err != nil || a.status != 200 {
			t.Fatal(path, a.status, string(a.body), a.err)
		}
		if err := json.Unmarshal(a.body, out); err != nil {
			t.Fatal(err)
		}
	}
	ask("GET", "/v1/agent/self", nil, &self)
	r.version = "1.14"
	if strings.HasPrefix(self.Config.Version, "1.8.") {
		r.version = "1.8"
	}
	node := self.Config.NodeName
	r.vars = map[string]string{"n": node}
	r.tokens = map[string]string{nobody: "", gone: "6b86b273-ff34-fce1-9d6b-804eff5a3f57"}
	name := fmt.Sprintf("table-%x", time.Now().UnixNano())
	r.key = "table/" + name
	for id, rules := range map[string]string{
		reader: fmt.Sprintf(`key_prefix %q { policy = "read" }`, r.key),
		locker: fmt.Sprintf(`key %q { policy = "write" } session %q { policy = "write" }`, r.key, node),
	} {
		var p struct{ ID string }
		ask("PUT", "/v1/acl/policy", map[string]string{"Name": name + id, "Rules": rules}, &p)
		var tok struct{ AccessorID, SecretID string }
		ask("PUT", "/v1/acl/token", map[string]any{"Policies": []any{map[string]string{"ID": p.ID}}}, &tok)
		r.tokens[id], r.vars[id[:1]] = tok.SecretID, tok.AccessorID
	}
	r.run(aclTable)
}
