package consulmodel_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

// step is one line of a case. In do, body, json and text, $name is what an earlier step saved; $k is a key that no
// other case uses.
type step struct {
	as     string // whose token it has, see acl_test.go
	do     string // "METHOD path"
	body   string
	status int    // 200 when zero
	json   string // what the answer must contain, see contains
	text   string // the whole answer, without white space at its ends; text8 is 1.8's where that differs
	text8  string
	only   string // "1.14" or "1.8": the step is for this version alone
	save   string // "name=path path ...", a path as in "0.ModifyIndex", or "name=header:X-Consul-Index"
	same   string // these saved values are equal
	holder string // after the step $k is held by this session; "-": by none; "gone": there is no $k

	start   string        // the request is made in the background, under this name
	pending string        // that request has no answer yet
	join    string        // wait for its answer, and judge it
	sleep   time.Duration // before the step
}

type testCase struct {
	name  string
	steps []step
}

// slowTable takes real time: a server is asked only if CONSUL_TABLE_SLOW is set.
var slowTable = []testCase{
	{"ttl: the key is free after 2xTTL, and then refused", []step{
		{do: "PUT /v1/session/create", body: `{"TTL":"10s","LockDelay":"2s","NodeChecks":[]}`, save: "a=ID"},
		{do: "PUT /v1/session/create", body: `{"TTL":"10s","LockDelay":"2s","NodeChecks":[]}`, save: "c=ID"},
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true", holder: "$a"},
		{do: "PUT /v1/session/renew/$c", json: `"some"`, sleep: 10 * time.Second},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "v", text: "false", holder: "$a", sleep: 9500 * time.Millisecond},
		{do: "PUT /v1/session/renew/$a", status: 404, holder: "-", sleep: 700 * time.Millisecond},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$b"`)), status: 409, json: what(0, `failed to lock key "$k" due to lock delay`)},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$b"`)), json: `{"Errors":null}`, holder: "$b", sleep: 2 * time.Second},
		{do: "PUT /v1/session/renew/$c", json: `"some"`},
		destroy("c"),
		destroy("b"),
	}},
	{"lock-delay is at most a minute", []step{
		{do: "PUT /v1/session/create", body: `{"LockDelay":"90s","NodeChecks":[]}`, save: "a=ID"},
		{do: "PUT /v1/session/create", body: `{"LockDelay":"0s","NodeChecks":[]}`, save: "b=ID"},
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true", holder: "$a"},
		destroy("a"),
		{do: "PUT /v1/kv/$k?acquire=$b", body: "v", text: "false", holder: "-", sleep: 59500 * time.Millisecond},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "v", text: "true", holder: "$b", sleep: 700 * time.Millisecond},
		destroy("b"),
	}},
}

const settle = 200 * time.Millisecond // a wake-up takes less than this on a real server

// session saves the id of a new session with lock-delay 1s under name.
func session(name string) step {
	return step{do: "PUT /v1/session/create", body: `{"TTL":"60s","LockDelay":"1s","NodeChecks":[]}`, save: name + "=ID"}
}

func destroy(name string) step { return step{do: "PUT /v1/session/destroy/$" + name, text: "true"} }

// kv is one operation of a transaction.
func kv(verb, key string, more ...string) string {
	s := fmt.Sprintf(`{"KV":{"Verb":%q,"Key":%q`, verb, key)
	for _, m := range more {
		s += "," + m
	}
	return s + "}}"
}

func txn(ops ...string) string { return "[" + strings.Join(ops, ",") + "]" }

func what(i int, text string) string {
	return fmt.Sprintf(`{"Results":null,"Errors":[{"OpIndex":%d,"What":%s}]}`, i, strconv.Quote(text))
}

func b64(s string) string { return `"Value":"` + base64.StdEncoding.EncodeToString([]byte(s)) + `"` }

var table = []testCase{
	{"session create: defaults", []step{
		{do: "PUT /v1/session/create", save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"ID":"$a","Name":"","LockDelay":15000000000,"Behavior":"release","TTL":"","NodeChecks":["serfHealth"],"ServiceChecks":null,"Checks":"absent","CreateIndex":">1"}]`},
		destroy("a"),
	}},
	{"session create: what we send", []step{
		{do: "PUT /v1/session/create", body: `{"Name":"onlyone/x","TTL":"10s","LockDelay":"20s","Behavior":"release","NodeChecks":[]}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"ID":"$a","Name":"onlyone/x","LockDelay":20000000000,"Behavior":"release","TTL":"10s","NodeChecks":[]}]`},
		{do: "PUT /v1/session/renew/$a", json: `[{"ID":"$a","Name":"onlyone/x","LockDelay":20000000000,"TTL":"10s","NodeChecks":[]}]`},
		destroy("a"),
		{do: "PUT /v1/session/renew/$a", status: 404, text: "Session id '$a' not found"},
		{do: "GET /v1/session/info/$a", text: "[]", save: "i=header:X-Consul-Index"},
		destroy("a"),
	}},
	{"session create: Checks [] takes NodeChecks away", []step{
		{do: "PUT /v1/session/create", body: `{"Checks":[]}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"NodeChecks":[],"Checks":"absent"}]`},
		destroy("a"),
		{do: "PUT /v1/session/create", body: `{"Checks":["serfHealth"],"NodeChecks":["serfHealth"]}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"NodeChecks":["serfHealth"],"Checks":"absent"}]`},
		destroy("a"),
		{do: "PUT /v1/session/create", body: `{"NodeChecks":[],"Checks":null}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"NodeChecks":[]}]`},
		destroy("a"),
	}},
	{"session create: lock-delay as a string and as a number", []step{
		{do: "PUT /v1/session/create", body: `{"LockDelay":30}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"LockDelay":30000000000}]`},
		destroy("a"),
		{do: "PUT /v1/session/create", body: `{"LockDelay":1500}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"LockDelay":1500}]`},
		destroy("a"),
		{do: "PUT /v1/session/create", body: `{"LockDelay":"90s"}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"LockDelay":90000000000}]`},
		destroy("a"),
		{do: "PUT /v1/session/create", body: `{"LockDelay":"0s"}`, save: "a=ID"},
		{do: "GET /v1/session/info/$a", json: `[{"LockDelay":0}]`},
		destroy("a"),
	}},
	{"session create: what is refused", []step{
		{do: "PUT /v1/session/create", body: `{"TTL":"9s"}`, status: 500, text: "Invalid Session TTL '9000000000', must be between [10s=24h0m0s]"},
		{do: "PUT /v1/session/create", body: `{"TTL":"25h"}`, status: 500, text: "Invalid Session TTL '90000000000000', must be between [10s=24h0m0s]"},
		{do: "PUT /v1/session/create", body: `{"TTL":"abc"}`, status: 500, text: `Session TTL 'abc' invalid: time: invalid duration "abc"`},
		{do: "PUT /v1/session/create", body: `{"Behavior":"keep"}`, status: 500, text: "Invalid Behavior setting 'keep'"},
		{do: "PUT /v1/session/create", body: `{"Node":"nowhere","NodeChecks":[]}`, status: 500, text: "apply failed: Missing node registration", text8: "Missing node registration"},
		{do: "PUT /v1/session/create", body: `{"NodeChecks":["nothing"]}`, status: 500, text: "apply failed: Missing check 'nothing' registration", text8: "Missing check 'nothing' registration"},
		{do: "PUT /v1/session/create", body: `{"LockDelay":"abc"}`, status: 400, text: `Request decode failed: time: invalid duration "abc"`},
		{do: "PUT /v1/session/create", body: `{"TTL":`, status: 400, text: "Request decode failed: unexpected EOF"},
		{do: "GET /v1/session/create", status: 405, text: "method GET not allowed"},
		{do: "PUT /v1/session/create", body: `{"TTL":"0","Unknown":1}`, save: "a=ID"}, // isn't refused
		destroy("a"),
	}},
	{"session ids", []step{
		{do: "PUT /v1/session/renew/", status: 400, text: "Missing session", text8: "Missing session"},
		{do: "PUT /v1/session/destroy/", status: 400, text: "Missing session"},
		{do: "GET /v1/session/info/", status: 400, text: "Missing session"},
		{do: "PUT /v1/session/renew/6b86b273-ff34-fce1-9d6b-804eff5a3f57", status: 404, text: "Session id '6b86b273-ff34-fce1-9d6b-804eff5a3f57' not found"},
		{do: "PUT /v1/session/destroy/6b86b273-ff34-fce1-9d6b-804eff5a3f57", text: "true"},
		{do: "PUT /v1/session/renew/nonsense", status: 404, text: "Session id 'nonsense' not found", only: "1.14"},
		{do: "PUT /v1/session/renew/nonsense", status: 500, text: "failed session lookup: index error: UUID must be 36 characters", only: "1.8"},
		{do: "PUT /v1/session/destroy/nonsense", status: 500, text: "failed session lookup: index error: UUID must be 36 characters", only: "1.8"},
		{do: "GET /v1/session/info/nonsense", status: 500, text: "failed session lookup: index error: UUID must be 36 characters", only: "1.8"},
		{do: "PUT /v1/session/destroy/nonsense", text: "true", only: "1.14"},
		{do: "GET /v1/session/info/nonsense", text: "[]", only: "1.14"},
	}},
	{"session list", []step{
		session("a"),
		session("b"),
		{do: "GET /v1/session/list", json: `"some"`, save: "i=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/session/list?index=$i&wait=10s"},
		{pending: "w"},
		destroy("a"),
		{join: "w", json: `"some"`, save: "j=header:X-Consul-Index"},
		destroy("b"),
	}},

	{"acquire, read, release", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true", holder: "$a"},
		{do: "GET /v1/kv/$k", json: `[{"Key":"$k","Flags":0,"LockIndex":1,"Session":"$a",` + b64("v") + `}]`, save: "m=0.ModifyIndex c=0.CreateIndex x=header:X-Consul-Index"},
		{do: "GET /v1/kv/$k?consistent", json: `[{"ModifyIndex":$x,"CreateIndex":$m}]`},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "false", holder: "$a"},
		{do: "PUT /v1/kv/$k?release=$b", text: "false", holder: "$a"},
		{do: "PUT /v1/kv/$k?release=$a", body: "r", text: "true", holder: "-"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":1,"Session":"absent",` + b64("r") + `,"ModifyIndex":">$m","CreateIndex":$c}]`},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b"}, // no lock-delay after a release
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":2,"Session":"$b"}]`},
		destroy("b"),
		destroy("a"),
	}},
	{"re-acquire by the same session", []step{
		session("a"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"ModifyIndex":$m,"LockIndex":1}]`},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`, b64("v"))), json: `{"Results":[{"KV":{"ModifyIndex":$m,"LockIndex":1,"Session":"$a","Value":null}}],"Errors":null}`},
		{do: "PUT /v1/kv/$k?acquire=$a", body: "other", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"ModifyIndex":">$m","LockIndex":1,"Session":"$a"}]`, save: "m=0.ModifyIndex"},
		{do: "PUT /v1/kv/$k?acquire=$a&flags=42", body: "other", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"ModifyIndex":">$m","LockIndex":1,"Flags":42}]`},
		destroy("a"),
	}},
	{"acquire with no or a dead session", []step{
		session("a"),
		destroy("a"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", status: 500, text: `raft apply failed: invalid session "$a"`, text8: `invalid session "$a"`, holder: "gone"},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`)), status: 409, json: what(0, `invalid session "$a"`)},
		{do: "PUT /v1/kv/$k?acquire=", body: "v", status: 500, text: `raft apply failed: missing session`, text8: `missing session`},
		{do: "PUT /v1/kv/$k?release=", body: "v", status: 500, text: `raft apply failed: missing session`, text8: `missing session`},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k")), status: 409, json: what(0, "missing session")},
		{do: "PUT /v1/kv/$k?release=$a", body: "v", text: "false"},
	}},
	{"put on a held key: session stays, LockIndex goes", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a&flags=7", body: "v", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":1,"Flags":7}]`, save: "m=0.ModifyIndex"},
		{do: "PUT /v1/kv/$k", body: "v", text: "true", holder: "$a"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":0,"Flags":0,"Session":"$a","ModifyIndex":">$m"}]`, save: "m=0.ModifyIndex"},
		{do: "PUT /v1/kv/$k", body: "v", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"ModifyIndex":$m}]`},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "false", holder: "$a"},
		{do: "PUT /v1/kv/$k?cas=$m", body: "w", text: "true", holder: "$a"},
		{do: "PUT /v1/kv/$k?release=$a", body: "w", text: "true", holder: "-"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":1}]`},
		destroy("b"),
		destroy("a"),
	}},
	{"delete of a held key: free at once, the session lives", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true", holder: "$a"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{do: "DELETE /v1/kv/$k", text: "true", holder: "gone"},
		{do: "PUT /v1/session/renew/$a", json: `[{"ID":"$a"}]`},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":1,"CreateIndex":">$m"}]`},
		{do: "DELETE /v1/kv/$k?recurse", text: "true", holder: "gone"},
		{do: "PUT /v1/kv/$k?acquire=$a", body: "w", text: "true", holder: "$a"},
		destroy("b"),
		destroy("a"),
	}},
	{"lock-delay after destroy", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		destroy("a"),
		{do: "GET /v1/kv/$k", json: `[{"Session":"absent","LockIndex":1,"ModifyIndex":">$m",` + b64("v") + `}]`, holder: "-"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "false", holder: "-"},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$b"`)), status: 409, json: what(0, `failed to lock key "$k" due to lock delay`)},
		{do: "PUT /v1/txn", body: txn(kv("get", "$k"), kv("lock", "$k", `"Session":"$b"`)), status: 409, json: what(1, `failed to lock key "$k" due to lock delay`)},
		{do: "PUT /v1/kv/$k", body: "plain", text: "true"},
		{do: "DELETE /v1/kv/$k", text: "true", holder: "gone"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "false", holder: "gone"}, // it belongs to the name
		{do: "PUT /v1/kv/$k/other?acquire=$b", body: "w", text: "true"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b", sleep: 1100 * time.Millisecond},
		destroy("b"),
	}},
	{"lock-delay 0", []step{
		{do: "PUT /v1/session/create", body: `{"LockDelay":"0s","NodeChecks":[]}`, save: "a=ID"},
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		destroy("a"),
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b"},
		destroy("b"),
	}},
	{"behavior delete", []step{
		{do: "PUT /v1/session/create", body: `{"LockDelay":"1s","NodeChecks":[],"Behavior":"delete"}`, save: "a=ID"},
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		{do: "PUT /v1/kv/$k/2?acquire=$a", body: "v", text: "true"},
		destroy("a"),
		{do: "GET /v1/kv/$k?recurse", status: 404, text: "", holder: "gone"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "false", holder: "gone"},
		{do: "PUT /v1/kv/$k/2?acquire=$b", body: "w", text: "false"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "w", text: "true", holder: "$b", sleep: 1100 * time.Millisecond},
		destroy("b"),
	}},

	{"txn lock", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`, `"Flags":3`, b64("v"))), json: `{"Results":[{"KV":{"Key":"$k","LockIndex":1,"Flags":3,"Session":"$a","Value":null,"CreateIndex":">1","ModifyIndex":">1"}}],"Errors":null}`, save: "m=Results.0.KV.ModifyIndex", holder: "$a"},
		{do: "GET /v1/kv/$k", json: `[{"ModifyIndex":$m,` + b64("v") + `}]`},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$b"`)), status: 409, json: what(0, `failed to lock key "$k", lock is already held`), holder: "$a"},
		{do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$b"`)), status: 409, json: what(0, `failed to unlock key "$k", lock isn't held, or is held by another session`), holder: "$a"},
		{do: "PUT /v1/txn", body: txn(kv("unlock", "$k/none", `"Session":"$b"`)), status: 409, json: what(0, `failed to unlock key "$k/none", lock isn't held, or is held by another session`)},
		{do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`, b64("r"))), json: `{"Results":[{"KV":{"Session":"absent","LockIndex":1,"Value":null,"ModifyIndex":">$m"}}],"Errors":null}`, holder: "-"},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$b"`)), json: `{"Results":[{"KV":{"LockIndex":2}}]}`, holder: "$b"},
		destroy("b"),
		destroy("a"),
	}},
	{"txn is atomic", []step{
		session("a"),
		{do: "PUT /v1/kv/$k/x", body: "1", text: "true"},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`), kv("set", "$k/new", b64("1")), kv("delete", "$k/x"), kv("check-not-exists", "$k/x"), kv("check-index", "$k/none", `"Index":5`)),
			status: 409, json: what(4, `failed to check index, key "$k/none" doesn't exist`), holder: "gone"},
		{do: "GET /v1/kv/$k/?recurse", json: `[{"Key":"$k/x"}]`},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`, b64("h")), kv("set", "$k/new", b64("1")), kv("delete", "$k/x"), kv("check-not-exists", "$k/x"), kv("get-tree", "$k")),
			json: `{"Results":[{"KV":{"Key":"$k","Value":null}},{"KV":{"Key":"$k/new","Value":null}},{"KV":{"Key":"$k",` + b64("h") + `}},{"KV":{"Key":"$k/new",` + b64("1") + `}}]}`,
			save: "a1=Results.0.KV.ModifyIndex a2=Results.1.KV.ModifyIndex a3=Results.2.KV.ModifyIndex", same: "a1 a2 a3", holder: "$a"},
		{do: "GET /v1/kv/$k/?recurse", json: `[{"Key":"$k/new","ModifyIndex":$a1}]`},
		{do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`), kv("delete-tree", "$k/")), json: `{"Results":[{"KV":{"Key":"$k"}}],"Errors":null}`, holder: "-"},
		{do: "GET /v1/kv/$k/?recurse", status: 404},
		destroy("a"),
	}},
	{"txn: all errors are told", []step{
		session("a"),
		{do: "PUT /v1/txn", body: txn(kv("get", "$k"), kv("lock", "$k", `"Session":"$a"`), kv("check-index", "$k", `"Index":1`)), status: 409,
			json: `{"Results":null,"Errors":[{"OpIndex":0,"What":"key \"$k\" doesn't exist"},{"OpIndex":2,"What":">"}]}`, holder: "gone"},
		destroy("a"),
	}},
	{"txn checks", []step{
		session("a"),
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), status: 409, json: what(0, `failed to check session, key "$k" doesn't exist`)},
		{do: "PUT /v1/kv/$k?acquire=$a", body: "v", text: "true"},
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), json: `{"Results":[{"KV":{"Key":"$k","Session":"$a","LockIndex":1,"Value":null}}],"Errors":null}`, save: "m=Results.0.KV.ModifyIndex"},
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-index", "$k", `"Index":$m`)), json: `{"Results":[{"KV":{"Value":null}}],"Errors":null}`},
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-index", "$k", `"Index":1`)), status: 409, json: what(0, `failed index check for key "$k", current modify index $m != 1`)},
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"other"`)), status: 409, json: what(0, `failed session check for key "$k", current session "$a" != "other"`)},
		{do: "PUT /v1/txn", body: txn(kv("check-not-exists", "$k")), status: 409, json: what(0, `key "$k" exists`)},
		{do: "PUT /v1/txn", body: txn(kv("check-not-exists", "$k/none")), json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("get", "$k/none")), status: 409, json: what(0, `key "$k/none" doesn't exist`)},
		{do: "PUT /v1/txn", body: txn(kv("get", "$k")), json: `{"Results":[{"KV":{"Key":"$k",` + b64("v") + `}}],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("get-tree", "$k/none")), json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("get-or-empty", "$k/none")), json: `{"Results":[{"KV":{"Key":"$k/none","Value":null,"ModifyIndex":0}}],"Errors":null}`, only: "1.14"},
		{do: "PUT /v1/txn", body: txn(kv("get-or-empty", "$k/none")), status: 409, json: what(0, `unknown KV verb "get-or-empty"`), only: "1.8"},
		{do: "PUT /v1/txn", body: txn(kv("check-session", "$k", `"Session":"$a"`), kv("set", "$k/2", b64("x"))), json: `{"Results":[{"KV":{"ModifyIndex":$m}},{"KV":{"Key":"$k/2"}}],"Errors":null}`},
		destroy("a"),
		{do: "PUT /v1/txn?consistent", body: txn(kv("check-session", "$k", `"Session":"$a"`)), status: 409, json: what(0, `failed session check for key "$k", current session "" != "$a"`)},
	}},
	{"txn set, cas, delete, delete-cas, delete-tree", []step{
		{do: "PUT /v1/txn", body: txn(kv("cas", "$k", `"Index":0`, b64("1"))), json: `{"Results":[{"KV":{"Key":"$k","LockIndex":0}}]}`, save: "m=Results.0.KV.ModifyIndex"},
		{do: "PUT /v1/txn", body: txn(kv("cas", "$k", `"Index":0`, b64("1"))), status: 409, json: what(0, `failed to set key "$k", index is stale`)},
		{do: "PUT /v1/txn", body: txn(kv("cas", "$k", `"Index":1`, b64("1"))), status: 409, json: what(0, `failed to set key "$k", index is stale`)},
		{do: "PUT /v1/txn", body: txn(kv("cas", "$k", `"Index":$m`, b64("2"))), json: `{"Results":[{"KV":{"ModifyIndex":">$m","CreateIndex":$m}}]}`, save: "n=Results.0.KV.ModifyIndex"},
		{do: "PUT /v1/txn", body: txn(kv("delete-cas", "$k", `"Index":$m`)), status: 409, json: what(0, `failed to delete key "$k", index is stale`)},
		{do: "PUT /v1/txn", body: txn(kv("delete-cas", "$k", `"Index":$n`)), json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("delete-cas", "$k", `"Index":$n`)), json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("delete", "$k")), json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: txn(kv("cas", "$k/none", `"Index":7`, b64("1"))), status: 409, json: what(0, `failed to set key "$k/none", index is stale`)},
		{do: "PUT /v1/txn", body: txn(kv("set", "$k/a", b64("1")), kv("set", "$k/b"), kv("set", "$kc", b64("1"))), json: `{"Results":[{"KV":{"Key":"$k/a"}},{"KV":{"Key":"$k/b"}},{"KV":{}}]}`},
		{do: "GET /v1/kv/$k/b", json: `[{"Value":null}]`},
		{do: "PUT /v1/txn", body: txn(kv("delete-tree", "$k/")), json: `{"Results":[],"Errors":null}`},
		{do: "GET /v1/kv/$k?keys", json: `["$kc"]`},
	}},
	{"txn: bad requests", []step{
		{do: "PUT /v1/txn", body: txn(kv("get", "")), status: 409, json: what(0, "Must provide key")},
		{do: "PUT /v1/txn", body: txn(kv("fly", "$k")), status: 409, json: what(0, `unknown KV verb "fly"`)},
		{do: "PUT /v1/txn", body: `[{"KV":`, status: 400, text: "Failed to parse body: unexpected EOF"},
		{do: "GET /v1/txn", status: 405, text: "method GET not allowed"},
		{do: "PUT /v1/txn", body: "[]", json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", body: "[{}]", json: `{"Results":[],"Errors":null}`},
		{do: "PUT /v1/txn", status: 400, text: "Failed to parse body: EOF"},
		{do: "PUT /v1/txn", body: `[{"KV":{"Verb":"get","Foo":1}}]`, status: 400, text: `Failed to parse body: json: unknown field "Foo"`},
		{do: "PUT /v1/txn", body: `[{"KV":{"Verb":"set","Key":"$k","Value":"%"}}]`, status: 400, text: "Failed to parse body: illegal base64 data at input byte 0"},
		{do: "PUT /v1/txn", body: txn(strings.Split(strings.Repeat(kv("get-tree", "$k")+"\n", 128), "\n")[:128]...), json: `{"Results":[]}`, only: "1.14"},
		{do: "PUT /v1/txn", body: txn(strings.Split(strings.Repeat(kv("get-tree", "$k")+"\n", 129), "\n")[:129]...), status: 413, text: "Transaction contains too many operations (129 > 128)", only: "1.14"},
		{do: "PUT /v1/txn", body: txn(strings.Split(strings.Repeat(kv("get-tree", "$k")+"\n", 65), "\n")[:65]...), status: 413, text: "Transaction contains too many operations (65 > 64)", only: "1.8"},
		{do: "PUT /v1/txn?consistent&stale", body: txn(kv("get-tree", "$k")), status: 400, text: "Cannot specify ?stale with ?consistent, conflicting semantics."},
	}},
	{"the fencing token grows over delete and re-creation", []step{
		session("a"),
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`)), save: "m=Results.0.KV.ModifyIndex"},
		{do: "DELETE /v1/kv/$k", text: "true"},
		{do: "PUT /v1/txn", body: txn(kv("lock", "$k", `"Session":"$a"`)), json: `{"Results":[{"KV":{"ModifyIndex":">$m","LockIndex":1}}]}`},
		destroy("a"),
	}},

	{"kv: get, put, cas, delete", []step{
		{do: "GET /v1/kv/$k", status: 404, text: "", save: "x=header:X-Consul-Index"},
		{do: "PUT /v1/kv/$k?cas=0", body: "1", text: "true"},
		{do: "PUT /v1/kv/$k?cas=0", body: "1", text: "false"},
		{do: "GET /v1/kv/$k?raw", text: "1", save: "x=header:X-Consul-Index"},
		{do: "PUT /v1/kv/$k?cas=1", body: "2", text: "false"},
		{do: "PUT /v1/kv/$k?cas=$x&flags=9", body: "2", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"LockIndex":0,"Flags":9,"CreateIndex":$x,"ModifyIndex":">$x"}]`, save: "y=0.ModifyIndex"},
		{do: "DELETE /v1/kv/$k?cas=$x", text: "false"},
		{do: "DELETE /v1/kv/$k?cas=$y", text: "true", holder: "gone"},
		{do: "DELETE /v1/kv/$k?cas=$y", text: "true"},
		{do: "DELETE /v1/kv/$k", text: "true"},
		{do: "PUT /v1/kv/$k", text: "true"},
		{do: "GET /v1/kv/$k", json: `[{"Value":null}]`},
	}},
	{"kv: list and keys", []step{
		{do: "PUT /v1/kv/$k/a", body: "1", text: "true"},
		{do: "PUT /v1/kv/$k/b/c", body: "2", text: "true"},
		{do: "PUT /v1/kv/$k/b/d", body: "3", text: "true"},
		{do: "GET /v1/kv/$k/?recurse", json: `[{"Key":"$k/a"},{"Key":"$k/b/c"},{"Key":"$k/b/d"}]`, save: "m=2.ModifyIndex x=header:X-Consul-Index"},
		{do: "GET /v1/kv/$k/b/d", json: `[{"ModifyIndex":$x}]`},
		{do: "GET /v1/kv/$k/?keys", json: `["$k/a","$k/b/c","$k/b/d"]`},
		{do: "GET /v1/kv/$k/?keys&separator=/", json: `["$k/a","$k/b/"]`},
		{do: "GET /v1/kv/$k/none?keys", status: 404, text: ""},
		{do: "GET /v1/kv/$k/none?recurse", status: 404, text: ""},
		{do: "DELETE /v1/kv/$k/a", text: "true"},
		{do: "GET /v1/kv/$k/?recurse", json: `[{"Key":"$k/b/c"},{"Key":"$k/b/d"}]`, save: "y=header:X-Consul-Index"}, // the tombstone's index
		{do: "DELETE /v1/kv/$k/?recurse", text: "true"},
		{do: "GET /v1/kv/$k/?recurse", status: 404, save: "z=header:X-Consul-Index"},
		{do: "PUT /v1/kv/$k/z", body: "$y", text: "true"},
		{do: "GET /v1/kv/$k/z", json: `[{"ModifyIndex":">$z"}]`},
	}},
	{"kv: bad requests", []step{
		{do: "GET /v1/kv/", status: 400, text: "Missing key name"},
		{do: "PUT /v1/kv/", body: "x", status: 400, text: "Missing key name"},
		{do: "DELETE /v1/kv/", status: 400, text: "Missing key name"},
		{do: "PUT /v1/kv/$k?acquire=a&release=a", status: 400, text: "Conflicting flags: acquire=a&release=a"},
		{do: "DELETE /v1/kv/$k?cas=1&recurse", status: 400, text: "Conflicting flags: cas=1&recurse="},
		{do: "PUT /v1/kv/$k?cas=abc", status: 500, text: `strconv.ParseUint: parsing "abc": invalid syntax`},
		{do: "PUT /v1/kv/$k?flags=-1", status: 500, text: `strconv.ParseUint: parsing "-1": invalid syntax`},
		{do: "GET /v1/kv/$k?index=abc", status: 400, text: "Invalid index"},
		{do: "GET /v1/kv/$k?index=1&wait=abc", status: 400, text: "Invalid wait time"},
		{do: "POST /v1/kv/$k", status: 405, text: "method POST not allowed"},
		{do: "GET /v1/kv/$k?stale&consistent", status: 400, text: "Cannot specify ?stale with ?consistent, conflicting semantics."},
		{do: "GET /v1/kv/$k?dc=elsewhere", status: 500, text: "No path to datacenter"},
		{do: "GET /v1/kv/$k?ns=x", status: 400, text: `Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature`, text8: `Bad request: Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature`},
		{do: "GET /v1/kv/$k?partition=x", status: 400, text: `Invalid query parameter: "partition" - Partitions are a Consul Enterprise feature`, only: "1.14"},
		{do: "PUT /v1/kv/$k", body: strings.Repeat("x", 512*1024+1), status: 413, text: "Request body(524289 bytes) too large, max size: 524288 bytes. See https://www.consul.io/docs/agent/config/config-files#kv_max_value_size.",
			text8: "Request body(524289 bytes) too large, max size: 524288 bytes. See https://www.consul.io/docs/agent/options.html#kv_max_value_size."},
	}},

	{"watch: a change wakes it", []step{
		{do: "PUT /v1/kv/$k", body: "1", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{do: "GET /v1/kv/$k?index=1&wait=10s", json: `[{"ModifyIndex":$m}]`}, // has moved on already
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=10s"},
		{start: "c", do: "GET /v1/kv/$k?index=$m&wait=10s&consistent"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k/other", body: "2", text: "true"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k", body: "1", text: "true"}, // nothing changes
		{pending: "w"},
		{do: "PUT /v1/kv/$k", body: "2", text: "true"},
		{join: "w", json: `[{"ModifyIndex":">$m",` + b64("2") + `}]`, save: "n=0.ModifyIndex x=header:X-Consul-Index"},
		{join: "c", json: `[{"ModifyIndex":$n}]`, same: "n x"},
	}},
	{"watch: delete wakes it", []step{
		{do: "PUT /v1/kv/$k", body: "1", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=10s"},
		{pending: "w"},
		{do: "DELETE /v1/kv/$k", text: "true"},
		{join: "w", status: 404, text: "", save: "x=header:X-Consul-Index"},
	}},
	{"watch: release, destroy and lock wake it", []step{
		session("a"),
		session("b"),
		{do: "PUT /v1/kv/$k?acquire=$a", body: "1", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=10s"},
		{pending: "w"},
		{do: "PUT /v1/txn", body: txn(kv("unlock", "$k", `"Session":"$a"`, b64("1")), kv("set", "$k/runs", b64("1"))), json: `{"Errors":null}`},
		{join: "w", json: `[{"Session":"absent"}]`, save: "m=0.ModifyIndex"},
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=10s"},
		{do: "PUT /v1/kv/$k?acquire=$b", body: "1", text: "true", sleep: settle},
		{join: "w", json: `[{"Session":"$b"}]`, save: "m=0.ModifyIndex"},
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=10s"},
		destroy("b"),
		{join: "w", json: `[{"Session":"absent"}]`},
		destroy("a"),
	}},
	{"watch: time-out gives what is there", []step{
		{do: "PUT /v1/kv/$k", body: "1", text: "true"},
		{do: "GET /v1/kv/$k", save: "m=0.ModifyIndex"},
		{start: "w", do: "GET /v1/kv/$k?index=$m&wait=1s"},
		{pending: "w", sleep: 700 * time.Millisecond},
		{join: "w", json: `[{"ModifyIndex":$m}]`, save: "x=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/kv/$k?index=999999999&wait=1s"},
		{pending: "w", sleep: 700 * time.Millisecond},
		{join: "w", json: `[{"ModifyIndex":$m}]`},
	}},
	{"watch: a missing key", []step{
		{do: "PUT /v1/kv/$k/x", body: "1", text: "true"},
		{do: "GET /v1/kv/$k", status: 404, save: "x=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/kv/$k?index=$x&wait=10s"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k/y", body: "1", text: "true"},
		{pending: "w", only: "1.14"},
		{join: "w", status: 404, only: "1.8"}, // any write wakes it: GH-12110
		{do: "GET /v1/kv/$k", status: 404, save: "x=header:X-Consul-Index", only: "1.8"},
		{start: "w", do: "GET /v1/kv/$k?index=$x&wait=10s", only: "1.8"},
		{do: "PUT /v1/kv/$k", body: "1", text: "true", sleep: settle},
		{join: "w", json: `[{"Key":"$k"}]`},
	}},
	{"watch: an empty prefix", []step{
		{do: "PUT /v1/kv/$k", body: "1", text: "true"},
		{do: "GET /v1/kv/$k/?recurse", status: 404, save: "x=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/kv/$k/?recurse&index=$x&wait=10s"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k/a", body: "1", text: "true"},
		{join: "w", json: `[{"Key":"$k/a"}]`},
	}},
	{"watch: a prefix", []step{
		{do: "PUT /v1/kv/$k/a", body: "1", text: "true"},
		{do: "GET /v1/kv/$k/?recurse", save: "x=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/kv/$k/?recurse&index=$x&wait=10s"},
		{start: "v", do: "GET /v1/kv/$k/?keys&index=$x&wait=10s"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k", body: "1", text: "true"},
		{pending: "w"},
		{do: "PUT /v1/kv/$k/b", body: "1", text: "true"},
		{join: "w", json: `[{"Key":"$k/a"},{"Key":"$k/b"}]`, save: "x=header:X-Consul-Index"},
		{join: "v", json: `["$k/a","$k/b"]`},
		{start: "w", do: "GET /v1/kv/$k/?recurse&index=$x&wait=10s"},
		{pending: "w"},
		{do: "DELETE /v1/kv/$k/a", text: "true"},
		{join: "w", json: `[{"Key":"$k/b"}]`, save: "x=header:X-Consul-Index"},
		{start: "w", do: "GET /v1/kv/$k/?recurse&index=$x&wait=10s"},
		{pending: "w"},
		{do: "DELETE /v1/kv/$k/?recurse", text: "true"},
		{join: "w", status: 404},
	}},

	{"others", []step{
		{do: "GET /v1/status/leader", json: `">"`},
		{do: "GET /v1/agent/self", json: `{"Config":{"Datacenter":">","NodeName":">","Version":">"}}`},
		{do: "PUT /v1/status/leader", status: 405},
		{do: "GET /v1/nothing", status: 404},
	}},
}

// TestTableModel runs the table against the model, in both versions.
func TestTableModel(t *testing.T) {
	for _, v := range []struct {
		name string
		v    consulmodel.Version
	}{{"1.14", consulmodel.V1_14}, {"1.8", consulmodel.V1_8}} {
		for _, c := range append(slices.Clone(table), slowTable...) {
			t.Run(v.name+"/"+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := consulmodel.New(consulmodel.Options{Seed: 1, Version: v.v})
					r := runner{t: t, version: v.name, base: "http://127.0.0.1:8500", client: &http.Client{Transport: m.Transport(nil)}}
					r.run(c)
				})
			})
		}
	}
}

// TestTableServer runs the table against a real Consul.
func TestTableServer(t *testing.T) {
	addr := os.Getenv("CONSUL_TABLE_ADDR")
	if addr == "" {
		t.Skip("CONSUL_TABLE_ADDR is unset: set it to host:port of a Consul dev agent (1.8 or 1.14)")
	}
	base := "http://" + addr
	version := serverVersion(t, base)
	cases := slices.Clone(table)
	if os.Getenv("CONSUL_TABLE_SLOW") != "" {
		cases = append(cases, slowTable...)
	}
	for _, c := range cases {
		t.Run(version+"/"+c.name, func(t *testing.T) {
			r := runner{t: t, version: version, base: base, client: &http.Client{Timeout: 15 * time.Second}}
			r.run(c)
		})
	}
}

func serverVersion(t *testing.T, base string) string {
	res, err := http.Get(base + "/v1/agent/self")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var self struct{ Config struct{ Version string } }
	if err := json.NewDecoder(res.Body).Decode(&self); err != nil {
		t.Fatal(err)
	}
	v := self.Config.Version
	switch {
	case strings.HasPrefix(v, "1.8."):
		return "1.8"
	case strings.HasPrefix(v, "1.14."):
		return "1.14"
	}
	t.Fatalf("the table knows 1.8 and 1.14, not %s", v)
	return ""
}

// runner runs one case.
type runner struct {
	t       *testing.T
	version string
	base    string
	client  *http.Client
	vars    map[string]string
	open    map[string]chan answer
	key     string            // $k; random when empty
	token   string            // of all requests
	tokens  map[string]string // by step.as
}

type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (r *runner) run(c testCase) {
	if r.key == "" {
		r.key = fmt.Sprintf("table/%x", rand.Uint64())
	}
	if r.vars == nil {
		r.vars = make(map[string]string)
	}
	r.vars["k"] = r.key
	r.open = make(map[string]chan answer)
	for i, s := range c.steps {
		if s.only != "" && s.only != r.version {
			continue
		}
		r.step(fmt.Sprintf("step %d, %s", i+1, s.do+s.join+s.pending), s)
		if r.t.Failed() {
			break
		}
	}
	for _, ch := range r.open {
		if r.t.Failed() {
			<-ch
		} else {
			r.t.Error("a request was started and never joined")
		}
	}
	r.do(http.MethodDelete, "/v1/kv/"+r.vars["k"]+"?recurse", "")
}

func (r *runner) step(at string, s step) {
	t := r.t
	if s.as != "" {
		defer func(before string) { r.token = before }(r.token)
		r.token = r.tokens[s.as]
	}
	if s.sleep > 0 {
		time.Sleep(s.sleep)
	}
	if s.pending != "" {
		if s.sleep == 0 {
			time.Sleep(settle)
		}
		select {
		case a := <-r.open[s.pending]:
			t.Errorf("%s: answered already: %d %s", at, a.status, a.body)
			delete(r.open, s.pending)
		default:
		}
		return
	}
	var a answer
	if s.join != "" {
		a = <-r.open[s.join]
		delete(r.open, s.join)
	} else {
		method, path, _ := strings.Cut(r.expand(s.do), " ")
		if s.start != "" {
			ch := make(chan answer, 1)
			r.open[s.start] = ch
			body := r.expand(s.body)
			go func() { ch <- r.do(method, path, body) }()
			return
		}
		a = r.do(method, path, r.expand(s.body))
	}
	if a.err != nil {
		t.Errorf("%s: %v", at, a.err)
		return
	}
	want := s.status
	if want == 0 {
		want = 200
	}
	if a.status != want {
		t.Errorf("%s: status %d, want %d: %s", at, a.status, want, a.body)
		return
	}
	text := s.text
	if r.version == "1.8" && s.text8 != "" {
		text = s.text8
	}
	if got := strings.TrimSpace(string(a.body)); text != "" && got != r.expand(text) {
		t.Errorf("%s:\n got %s\nwant %s", at, got, r.expand(text))
	}
	if s.json != "" {
		var got, want any
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Errorf("%s: %v: %s", at, err, a.body)
			return
		}
		if err := json.Unmarshal([]byte(r.expandJSON(s.json)), &want); err != nil {
			t.Fatalf("%s: the table is wrong: %v: %s", at, err, r.expandJSON(s.json))
		}
		if why := contains(got, want); why != "" {
			t.Errorf("%s: %s\n got %s\nwant %s", at, why, a.body, r.expandJSON(s.json))
		}
	}
	for f := range strings.FieldsSeq(s.save) {
		name, path, _ := strings.Cut(f, "=")
		v := pick(t, a, path)
		if v == "" {
			t.Errorf("%s: nothing at %s: %s", at, path, a.body)
		}
		r.vars[name] = v
	}
	for name := range strings.FieldsSeq(s.same) {
		if first, _, _ := strings.Cut(s.same, " "); r.vars[name] != r.vars[first] {
			t.Errorf("%s: %s is %s, %s is %s", at, first, r.vars[first], name, r.vars[name])
		}
	}
	if s.holder != "" {
		r.holder(at, r.expand(s.holder))
	}
}

func (r *runner) holder(at, want string) {
	a := r.do(http.MethodGet, "/v1/kv/"+r.vars["k"]+"?consistent", "")
	got := "gone"
	if a.status == 200 {
		var e []struct{ Session string }
		if err := json.Unmarshal(a.body, &e); err != nil {
			r.t.Errorf("%s: %v", at, err)
			return
		}
		if got = e[0].Session; got == "" {
			got = "-"
		}
	}
	if got != want {
		r.t.Errorf("%s: held by %q afterwards, want %q", at, got, want)
	}
}

func (r *runner) do(method, path, body string) answer {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, r.base+path, rd)
	if err != nil {
		return answer{err: err}
	}
	if r.token != "" {
		req.Header.Set("X-Consul-Token", r.token)
	}
	res, err := r.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b, err}
}

var varRE = regexp.MustCompile(`\$[a-z][0-9]?`)

// expand puts saved values in; $kc is $k followed by a c.
func (r *runner) expand(s string) string {
	return varRE.ReplaceAllStringFunc(s, func(v string) string {
		if x, ok := r.vars[v[1:]]; ok {
			return x
		}
		return v
	})
}

// expandJSON is expand; the table's texts have no characters that JSON would escape.
func (r *runner) expandJSON(s string) string { return r.expand(s) }

// pick returns one value of an answer, as text.
func pick(t *testing.T, a answer, path string) string {
	if h, ok := strings.CutPrefix(path, "header:"); ok {
		return a.header.Get(h)
	}
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Errorf("%v: %s", err, a.body)
		return ""
	}
	for p := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			if i, _ := strconv.Atoi(p); i < len(x) {
				v = x[i]
			} else {
				v = nil
			}
		default:
			return ""
		}
	}
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// contains says what got lacks of want. Objects may have more fields than wanted, arrays have as many elements.
// The strings "absent", "some" (an array that isn't empty), ">" (anything) and ">5" (a number above 5) stand for what
// they say.
func contains(got, want any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%v is not an object", got)
		}
		for k, v := range w {
			x, there := g[k]
			if v == "absent" {
				if there {
					return fmt.Sprintf("%s is there", k)
				}
				continue
			}
			if !there {
				return fmt.Sprintf("%s is missing", k)
			}
			if why := contains(x, v); why != "" {
				return k + ": " + why
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%v has not %d elements", got, len(w))
		}
		for i := range w {
			if why := contains(g[i], w[i]); why != "" {
				return fmt.Sprintf("%d: %s", i, why)
			}
		}
		return ""
	case string:
		if w == "some" {
			if g, ok := got.([]any); !ok || len(g) == 0 {
				return fmt.Sprintf("%v is not a list with elements", got)
			}
			return ""
		}
		if rest, ok := strings.CutPrefix(w, ">"); ok {
			if rest == "" {
				return ""
			}
			min, _ := strconv.ParseFloat(rest, 64)
			if g, ok := got.(float64); !ok || g <= min {
				return fmt.Sprintf("%v is not above %s", got, rest)
			}
			return ""
		}
	}
	if got != want {
		return fmt.Sprintf("%v, not %v", got, want)
	}
	return ""
}

func stringBody(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }
