package consultest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Options say what server is started.
type Options struct {
	Version    string // of Versions; empty: Version()
	Persistent bool   // keeps its data on disk, so that Kill and Restart are an outage
	ACL        bool   // default deny; RootToken may do everything
	Conns      int    // http_max_conns_per_client; 0: 2000, since all tests come from one address
}

// RootToken is the bootstrap token of a server with ACLs.
const RootToken = "6f1d7a52-6a3c-4f0e-9a55-0d5f0e1c7b11"

// node is the name of each server's node: session rules of ACLs are about it.
const node = "consultest"

// startLimit is how long a server may take until it has a leader: 1-2 s on an idle machine.
const startLimit = 60 * time.Second

// A Server is a Consul server of its own. Its methods aren't safe for concurrent use,
// except for those that only ask.
type Server struct {
	Addr    string // 127.0.0.1:PORT
	Version string
	Binary  string

	opts   Options
	dir    string
	ports  ports
	client *api.Client
	idle   func()
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has been reaped
}

type ports struct{ http, server, serf int }

// Start starts a server that lives as long as the test.
func Start(tb testing.TB, o Options) *Server {
	tb.Helper()
	s, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// New is Start for what outlives a test. Close must be called.
func New(o Options) (*Server, error) {
	if o.Version == "" {
		o.Version = Version()
	}
	bin, err := Binary(o.Version)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "consultest")
	if err != nil {
		return nil, err
	}
	// Somebody may take a port between our look and Consul's bind.
	for range 4 {
		s := &Server{Version: o.Version, Binary: bin, opts: o, dir: dir}
		if s.ports, err = freePorts(); err != nil {
			break
		}
		s.Addr = fmt.Sprintf("127.0.0.1:%d", s.ports.http)
		s.connect()
		if err = s.run(); err == nil {
			return s, nil
		}
		s.kill()
		s.idle()
		if !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	os.RemoveAll(dir)
	return nil, err
}

// connect makes the client of the helpers below.
func (s *Server) connect() {
	tr := &http.Transport{MaxIdleConnsPerHost: 4}
	conf := &api.Config{Address: s.Addr, Scheme: "http", HttpClient: &http.Client{Transport: tr}}
	if s.opts.ACL {
		conf.Token = RootToken
	}
	client, err := api.NewClient(conf)
	if err != nil {
		panic(err) // all of the above is fixed
	}
	s.client, s.idle = client, tr.CloseIdleConnections
}

func (s *Server) args() []string {
	a := []string{"agent", "-node=" + node, "-bind=127.0.0.1", "-client=127.0.0.1", "-log-level=warn",
		fmt.Sprintf("-http-port=%d", s.ports.http), fmt.Sprintf("-server-port=%d", s.ports.server), fmt.Sprintf("-serf-lan-port=%d", s.ports.serf),
		"-serf-wan-port=-1", "-dns-port=-1", "-grpc-port=-1",
		"-hcl=disable_update_check=true connect{enabled=false} performance{raft_multiplier=1}",
		fmt.Sprintf("-hcl=limits{http_max_conns_per_client=%d}", cmp.Or(s.opts.Conns, 2000)),
	}
	root := "initial_management"
	if s.Version == "1.8" {
		root = "master"
	} else {
		a = append(a, "-grpc-tls-port=-1")
	}
	if s.opts.ACL {
		a = append(a, fmt.Sprintf(`-hcl=acl{enabled=true default_policy="deny" tokens{%s=%q agent=%q}}`, root, RootToken, RootToken))
	}
	if s.opts.Persistent {
		return append(a, "-server", "-bootstrap-expect=1", "-data-dir="+filepath.Join(s.dir, "data"))
	}
	return append(a, "-dev")
}

// run starts the process and waits until the server can be used.
func (s *Server) run() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.Binary, s.args()...)
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.SysProcAttr = log, log, dieWithParent()
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONSUL_") {
			s.cmd.Env = append(s.cmd.Env, kv)
		}
	}
	s.ended = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // "parent died" means this thread
		defer runtime.UnlockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(s.ended)
	}()
	if err := <-started; err != nil {
		s.cmd = nil
		return fmt.Errorf("cannot start Consul: %w", err)
	}
	if err := s.ready(); err != nil {
		b, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		return fmt.Errorf("server %s at %s: %w\n%s", s.Version, s.Addr, err, b)
	}
	return nil
}

// ready waits for a leader that knows the server's own node: without it no session can be
// created.
func (s *Server) ready() error {
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return errors.New("it ended")
		case <-limit.C:
			return fmt.Errorf("not ready after %s", startLimit)
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		nodes, _, err := s.client.Catalog().Nodes((&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		cancel()
		if err == nil && len(nodes) > 0 {
			return nil
		}
	}
}

// Kill ends a persistent server as a crash would. Restart brings it back.
func (s *Server) Kill() { s.kill() }

// Restart starts a killed persistent server again, with its data and address, and returns
// when it has a leader.
func (s *Server) Restart() error {
	if !s.opts.Persistent {
		return errors.New("the server isn't persistent")
	}
	return s.run()
}

// Pause stops the process (SIGSTOP): its connections stay open and nothing answers.
func (s *Server) Pause() {
	s.signal(syscall.SIGSTOP)
	awaitStop(s.cmd.Process.Pid)
}

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
	}
}

// kill ends the process and waits for its end.
func (s *Server) kill() {
	if s.cmd == nil {
		return
	}
	s.signal(syscall.SIGKILL)
	<-s.ended
	s.cmd = nil
}

// Close ends the server and removes its data.
func (s *Server) Close() {
	s.kill()
	s.idle()
	os.RemoveAll(s.dir)
}

// Pid is the server's process.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Client is a client of the server, with RootToken if there are ACLs.
func (s *Server) Client() *api.Client { return s.client }

// Sessions are the ids of the sessions whose name is name, or begins with name and a '/'.
func (s *Server) Sessions(tb testing.TB, name string) []string {
	tb.Helper()
	list, _, err := s.client.Session().List(&api.QueryOptions{RequireConsistent: true})
	if err != nil {
		tb.Fatalf("cannot list the sessions: %v", err)
	}
	var ids []string
	for _, e := range list {
		if e.Name == name || strings.HasPrefix(e.Name, name+"/") {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// Keys are the keys below prefix.
func (s *Server) Keys(tb testing.TB, prefix string) []string {
	tb.Helper()
	keys, _, err := s.client.KV().Keys(prefix, "", &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		tb.Fatalf("cannot list keys: %v", err)
	}
	return keys
}

// Key is a key's entry, or nil.
func (s *Server) Key(tb testing.TB, key string) *api.KVPair {
	tb.Helper()
	kv, _, err := s.client.KV().Get(key, &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		tb.Fatalf("cannot read %s: %v", key, err)
	}
	return kv
}

// Token makes an ACL token with these rules.
func (s *Server) Token(rules string) (string, error) {
	name := fmt.Sprintf("test-%d", rand.Int64())
	p, _, err := s.client.ACL().PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
	if err != nil {
		return "", fmt.Errorf("cannot create a policy: %w", err)
	}
	t, _, err := s.client.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: p.ID}}}, nil)
	if err != nil {
		return "", fmt.Errorf("cannot create a token: %w", err)
	}
	return t.SecretID, nil
}

func freePorts() (p ports, err error) {
	for _, port := range []*int{&p.http, &p.server, &p.serf} {
		if *port, err = FreePort(); err != nil {
			return p, err
		}
	}
	return p, nil
}

// FreePort is a port of 127.0.0.1 on which nobody listens now. It lies below those that the
// system gives to outgoing connections and to whoever asks for any port, and no two callers of
// one process get the same: much later a server can still bind it.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 12000 + rand.IntN(20000)
		if _, taken := given.LoadOrStore(port, true); taken {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, fmt.Errorf("cannot find a free port: %w", err)
}

// given are the ports of FreePort.
var given sync.Map
