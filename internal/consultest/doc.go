// Package consultest runs real Consul servers for tests, puts faults between them and
// what is tested, and checks afterwards what was promised.
//
//	s := consultest.Start(t, consultest.Options{})       // a server of its own, gone with the test
//	p := consultest.NewProxy(t, s)                        // CONSUL_HTTP_ADDR=p.Addr
//	p.Set(consultest.Hang)                                // stops answering, keeps connections open
//	runs := consultest.ReadIntervals(t, file)             // what the children wrote, see Child
//	consultest.NoOverlap(t, runs)
//
// The binary comes from scripts/consul. ONLYONE_TEST_CONSUL=1.8 or 1.14 chooses the
// version; 1.8 is the default, see Each.
//
// A server listens on 127.0.0.1 only. It is killed with the test, and also if the test
// process dies (Linux).
package consultest
