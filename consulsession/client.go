package consulsession

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/consul/api"
)

// ClientConfig says how Consul is reached. The zero value of a field means what the
// consul command makes of it: the CONSUL_* variables, then its defaults.
type ClientConfig struct {
	Addresses  []string // HOST:PORT, http://, https:// or unix://; tried in turn
	Token      string
	TokenFile  string // read again when it changes, and after a 403
	CAFile     string
	CAPath     string
	ClientCert string
	ClientKey  string
	ServerName string
	Datacenter string
	Namespace  string
	Partition  string

	// Transport replaces the network, for tests.
	Transport http.RoundTripper `json:"-"`
}

// A StatusError is an answer of Consul that isn't a success.
type StatusError struct {
	Code int
	Body string
}

func (e *StatusError) Error() string {
	body := strings.Join(strings.Fields(e.Body), " ")
	if len(body) > 200 {
		body = body[:200] + "..."
	}
	return fmt.Sprintf("consul says %d: %s", e.Code, body)
}

// newAPI makes a client that opens at most conns connections to each address: Consul takes
// 200 from one host, and a cancelled watch keeps its place until its wait is over.
func newAPI(c ClientConfig, conns int) (*api.Client, *transport, error) {
	conf := api.DefaultConfig()
	t := &transport{}
	addresses := c.Addresses
	if len(addresses) == 0 {
		addresses = strings.Split(conf.Address, ",")
	}
	tlsConf := conf.TLSConfig
	for _, o := range []struct {
		to   *string
		from string
	}{{&tlsConf.CAFile, c.CAFile}, {&tlsConf.CAPath, c.CAPath}, {&tlsConf.CertFile, c.ClientCert}, {&tlsConf.KeyFile, c.ClientKey}, {&tlsConf.Address, c.ServerName},
		{&conf.Datacenter, c.Datacenter}, {&conf.Namespace, c.Namespace}, {&conf.Partition, c.Partition}} {
		if o.from != "" {
			*o.to = o.from
		}
	}
	tlsClient, err := api.SetupTLSConfig(&tlsConf)
	if err != nil {
		return nil, nil, &ConfigError{fmt.Sprintf("cannot use the TLS settings: %v", err)}
	}
	for _, a := range addresses {
		e, err := parseAddress(strings.TrimSpace(a), conf.Scheme)
		if err != nil {
			return nil, nil, err
		}
		e.rt = c.Transport
		if e.rt == nil {
			e.rt = newTransport(e.socket, tlsClient, conns)
		}
		t.endpoints = append(t.endpoints, e)
	}
	if err := t.token.set(c, conf); err != nil {
		return nil, nil, err
	}
	// The transport below adds address and token; the library's own are switched off.
	conf.Address, conf.Scheme, conf.Token, conf.TokenFile = "consul.invalid", "http", "", ""
	conf.HttpClient = &http.Client{Transport: t}
	client, err := withoutTokenEnv(conf)
	if err != nil {
		return nil, nil, &ConfigError{fmt.Sprintf("cannot set up the Consul client: %v", err)}
	}
	return client, t, nil
}

// withoutTokenEnv builds the client without letting the library read a token file
// itself: it would read it once, at start.
func withoutTokenEnv(conf *api.Config) (*api.Client, error) {
	if file, ok := os.LookupEnv(api.HTTPTokenFileEnvName); ok {
		os.Unsetenv(api.HTTPTokenFileEnvName)
		defer os.Setenv(api.HTTPTokenFileEnvName, file)
	}
	return api.NewClient(conf)
}

// A ConfigError is a setting that can't work.
type ConfigError struct{ Problem string }

func (e *ConfigError) Error() string { return e.Problem }

type endpoint struct {
	scheme, host, prefix string
	socket               string // a Unix socket's path
	rt                   http.RoundTripper
}

func (e *endpoint) String() string {
	if e.socket != "" {
		return "unix://" + e.socket
	}
	return e.scheme + "://" + e.host + e.prefix
}

func parseAddress(a, scheme string) (*endpoint, error) {
	if path, ok := strings.CutPrefix(a, "unix://"); ok {
		return &endpoint{scheme: "http", host: "localhost", socket: path}, nil
	}
	full := a
	if !strings.Contains(a, "://") {
		full = scheme + "://" + a
	}
	u, err := url.Parse(full)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || strings.ContainsAny(a, " \t") {
		return nil, &ConfigError{fmt.Sprintf("%q is not the address of a Consul agent; it looks like 127.0.0.1:8500, https://HOST:8501 or unix:///PATH", a)}
	}
	if p := u.Port(); p == "" && strings.HasSuffix(u.Host, ":") {
		return nil, &ConfigError{fmt.Sprintf("%q has no port", a)}
	}
	return &endpoint{scheme: u.Scheme, host: u.Host, prefix: strings.TrimSuffix(u.Path, "/")}, nil
}

func newTransport(socket string, tlsConf *tls.Config, conns int) *http.Transport {
	// A dead peer is found by the deadline of each request, not by keep-alives.
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	tr := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: tlsConf,
		MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns, IdleConnTimeout: 30 * time.Second,
		TLSHandshakeTimeout: 5 * time.Second, DisableCompression: true,
		ReadBufferSize: 2048, WriteBufferSize: 2048,
	}
	if socket != "" {
		tr.Proxy = nil
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
	}
	return tr
}

// transport sends each request to the address that worked last, with the present token,
// and turns an answer that is neither a success nor one that the library wants to see
// (404, and 409 for transactions) into a *StatusError.
type transport struct {
	endpoints []*endpoint
	token     tokenSource
	answered  func(resp *http.Response, sent time.Time) // sees each answer; nil: nobody does
	mu        sync.Mutex
	current   int
}

func (t *transport) address() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endpoints[t.current].String()
}

func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.send(req)
	if err == nil && resp.StatusCode == http.StatusForbidden && t.token.reload() && req.GetBody != nil {
		resp.Body.Close()
		if req.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
		resp, err = t.send(req)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case resp.StatusCode < 300, resp.StatusCode == http.StatusNotFound:
		return resp, nil
	case resp.StatusCode == http.StatusConflict && strings.HasSuffix(req.URL.Path, "/v1/txn"):
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode == http.StatusTooManyRequests && bytes.Contains(body, []byte("too many concurrent connections")) {
		return nil, &ConnectionLimitError{Told: true}
	}
	return nil, &StatusError{Code: resp.StatusCode, Body: string(bytes.TrimSpace(body))}
}

func (t *transport) send(req *http.Request) (*http.Response, error) {
	t.mu.Lock()
	n := t.current
	t.mu.Unlock()
	e := t.endpoints[n]
	r := req.Clone(req.Context())
	r.URL.Scheme, r.URL.Host, r.Host = e.scheme, e.host, e.host
	if e.prefix != "" {
		r.URL.Path = e.prefix + r.URL.Path
	}
	if token := t.token.get(); token != "" {
		r.Header.Set("X-Consul-Token", token)
	}
	fresh := false
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { fresh = !i.Reused }}))
	sent := time.Now()
	resp, err := e.rt.RoundTrip(r)
	if fresh && hungUp(err) {
		err = &ConnectionLimitError{}
	}
	if err == nil && t.answered != nil {
		t.answered(resp, sent)
	}
	// Another agent may do better; sessions can be renewed through any of a datacenter.
	if (err != nil && !errors.Is(err, context.Canceled)) || (err == nil && sick(resp.StatusCode)) {
		t.mu.Lock()
		if t.current == n {
			t.current = (n + 1) % len(t.endpoints)
		}
		t.mu.Unlock()
	}
	return resp, err
}

// sick: this agent, or what stands before it, can't answer, or won't answer this host now.
func sick(status int) bool {
	return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout
}

// hungUp: the other side took the connection and closed it. Consul 1.14 answers 429 before
// there is a request, which net/http may not take for the answer to one. It doesn't export
// those errors.
func hungUp(err error) bool {
	return err != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection") || strings.Contains(err.Error(), "readLoopPeekFailLocked"))
}

func (t *transport) closeIdle() {
	for _, e := range t.endpoints {
		if tr, ok := e.rt.(*http.Transport); ok {
			tr.CloseIdleConnections()
		}
	}
}

// tokenSource is the ACL token. Precedence as consul's: --token-file, --token,
// CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_TOKEN.
type tokenSource struct {
	mu    sync.Mutex
	file  string
	mtime time.Time
	value string
}

func (s *tokenSource) set(c ClientConfig, env *api.Config) error {
	switch {
	case c.TokenFile != "":
		s.file = c.TokenFile
	case c.Token != "":
		s.value = c.Token
	case env.TokenFile != "":
		s.file = env.TokenFile
	default:
		s.value = env.Token
	}
	if s.file == "" {
		return nil
	}
	if _, err := os.ReadFile(s.file); err != nil {
		// Later it may be missing for a moment; at the start that is a wrong setting.
		return &ConfigError{fmt.Sprintf("cannot read the token file: %v", err)}
	}
	return nil
}

// get returns the token, read again if its file has changed. A file that can't be read or is
// empty for a moment (it is being replaced) keeps the last token.
func (s *tokenSource) get() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		return s.value
	}
	if info, err := os.Stat(s.file); err == nil && !info.ModTime().Equal(s.mtime) {
		s.read(info.ModTime())
	}
	return s.value
}

func (s *tokenSource) read(mtime time.Time) {
	b, err := os.ReadFile(s.file)
	value := strings.TrimSpace(string(b))
	if err != nil || value == "" && s.value != "" {
		return
	}
	s.value, s.mtime = value, mtime
}

// reload reads the file in any case and reports whether the token is another one now.
func (s *tokenSource) reload() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == "" {
		return false
	}
	old := s.value
	s.read(time.Time{})
	return s.value != old
}
