package consulmodel

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/hashicorp/consul/api"
)

// slowTxn is what scanTxn must agree with.
func slowTxn(body []byte) (ops []TxnOp, ok bool) {
	var in []txnBody
	if decodeStrict(body, &in) != nil {
		return nil, false
	}
	for _, x := range in {
		if x.KV == nil || !x.none() {
			return nil, false
		}
		ops = append(ops, x.KV.op())
	}
	return ops, true
}

func TestScanTxn(t *testing.T) {
	for _, ops := range []api.TxnOps{
		{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: "onlyone/a/.lock", Session: "x"}}},
		{{KV: &api.KVTxnOp{Verb: api.KVLock, Key: "k", Value: []byte(`{"a":"é"}`), Flags: 1<<64 - 1}}, {KV: &api.KVTxnOp{Verb: api.KVGetTree, Index: 7}}},
	} {
		b, err := json.Marshal(ops)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := scanTxn(append(b, '\n'))
		want, _ := slowTxn(b)
		if !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %+v, want %+v", b, ok, got, want)
		}
	}
}

// FuzzScanTxn: what scanTxn reads, encoding/json reads alike.
func FuzzScanTxn(f *testing.F) {
	for _, s := range []string{
		`[{"KV":{"Verb":"lock","Key":"k","Value":"dg==","Flags":0,"Index":0,"Session":"s"},"Node":null,"Service":null,"Check":null}]`,
		`[{"KV":{"Verb":"get","Key":"k","Value":null}},{"KV":{"Key":"a","Index":01}}]`,
		`[]`, `[{}]`, `[{"KV":null}]`, `[{"kv":{"verb":"get"}}]`, `[{"KV":{"Key":"\u0041"}}]`, `[{"KV":{"Value":""}}]`, `[{"KV":{"Flags":1e2}}]`, `[{"KV":{"Flags":-0}}] x`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, ok := scanTxn(body)
		if !ok {
			return
		}
		if want, ok := slowTxn(body); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %v %+v", body, got, ok, want)
		}
	})
}
