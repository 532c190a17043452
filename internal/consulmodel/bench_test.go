package consulmodel_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/a-seed-0bc5ead7/onlyone/internal/consulmodel"
)

func newClient(tb testing.TB, rt http.RoundTripper) *api.Client {
	tb.Helper()
	c, err := api.NewClient(&api.Config{Address: "127.0.0.1:8500", HttpClient: &http.Client{Transport: rt}})
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// BenchmarkCheckSession is the request that the simulation makes most: one ownership check with the real client.
func BenchmarkCheckSession(b *testing.B) {
	m := consulmodel.New(consulmodel.Options{})
	c := newClient(b, m.Transport(nil))
	s := m.CreateSession(10*time.Second, 20*time.Second)
	m.Acquire("onlyone/report/.lock", s, `{"state":"held"}`)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	b.ReportAllocs()
	for b.Loop() {
		ok, _, _, err := c.Txn().Txn(api.TxnOps{{KV: &api.KVTxnOp{Verb: api.KVCheckSession, Key: "onlyone/report/.lock", Session: s}}}, q)
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}

// BenchmarkTransportOnly is the model's share of it.
func BenchmarkTransportOnly(b *testing.B) {
	m := consulmodel.New(consulmodel.Options{})
	t := m.Transport(nil)
	s := m.CreateSession(10*time.Second, 20*time.Second)
	m.Acquire("onlyone/report/.lock", s, `{"state":"held"}`)
	body := `[{"KV":{"Verb":"check-session","Key":"onlyone/report/.lock","Value":null,"Flags":0,"Index":0,"Session":"` + s + `"},"Node":null,"Service":null,"Check":null}]` + "\n"
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "PUT", "http://127.0.0.1:8500/v1/txn?consistent=", nil)
	r.ContentLength = int64(len(body))
	b.ReportAllocs()
	for b.Loop() {
		r.Body = stringBody(body)
		res, err := t.RoundTrip(r)
		if err != nil || res.StatusCode != 200 {
			b.Fatal(res, err)
		}
	}
}
