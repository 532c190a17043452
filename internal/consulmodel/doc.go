// Package consulmodel is one Consul cluster in memory: sessions, keys, transactions, blocking queries and
// lock-delays, served over HTTP semantics without a socket. Tests run it in testing/synctest bubbles under the real
// hashicorp/consul/api client; the simulation runs thousands of schedules of it.
//
// # Promise
//
// Status codes, bodies and error texts are those of Consul 1.14.11 (or 1.8.7, see [Options]) for the endpoints that a
// lock needs. The table in table_test.go runs against the model and, when CONSUL_TABLE_ADDR names one, against a real
// server: a row that passes on one side only is a fault of the model.
//
// Time is the standard time package, so it is fake inside a bubble. Nothing waits while holding a mutex, and no
// goroutine outlives its request: what happens later is a timer, as it is in Consul itself.
//
// # Limits
//
// One datacenter, no services, no prepared queries, no enterprise features. Raft is an index that grows by one with each
// write; a leader is there or it isn't. Faults of the way to the server are a [Plan] for each request, faults of the
// cluster are methods of [Model].
//
// # Use
//
//	m := consulmodel.New(consulmodel.Options{Seed: 1})
//	client, err := api.NewClient(&api.Config{HttpClient: &http.Client{Transport: m.Transport(nil)}})
package consulmodel
