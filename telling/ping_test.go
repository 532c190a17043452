package telling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const secret = "5bf66975-d4c7-4bf5-bcc8-b8d8a82ea278"

// aRun is one that has ended well.
func aRun() Run {
	started := time.Date(2026, 11, 29, 3, 0, 1, 0, time.UTC)
	return Run{Name: "backup", Host: "web-1", Pid: 4711, Command: []string{"/usr/local/bin/backup", "--key=<&hidden>"}, Token: 25,
		Period: "2026-11-29T03:00:00Z", Outcome: Exited, Started: started, Ended: started.Add(41250 * time.Millisecond),
		Waited: 1500 * time.Millisecond, Ran: 41250 * time.Millisecond}
}

// warnings collects what a Pinger warns of.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) warn(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, err.Error())
}

func (w *warnings) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.text)
}

func pinger(t *testing.T, url string) (*Pinger, *warnings) {
	t.Helper()
	w := &warnings{}
	p, err := NewPinger(url, NewID(), w.warn)
	if err != nil {
		t.Fatal(err)
	}
	return p, w
}

// inFakeTime puts f in the place of the network.
type inFakeTime func(*http.Request) (*http.Response, error)

func (f inFakeTime) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func answer(code int, body string) (*http.Response, error) {
	return &http.Response{StatusCode: code, Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{}}, nil
}

func TestPingProtocol(t *testing.T) {
	for base, want := range map[string]string{
		"/" + secret:                  "/" + secret + "/start?rid=ID",
		"/" + secret + "/":            "/" + secret + "/start?rid=ID",
		"":                            "/start?rid=ID",
		"/key/slug?create=1":          "/key/slug/start?create=1&rid=ID",
		"/a%2Fb/c//d?x=%26&y":         "/a%2Fb/c//d/start?x=%26&y&rid=ID",
		"/" + secret + "?x=1#ignored": "/" + secret + "/start?x=1&rid=ID",
	} {
		t.Run(base, func(t *testing.T) {
			var got []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				user, password, _ := r.BasicAuth()
				got = append(got, r.Method+" "+r.RequestURI, user+":"+password, string(body))
				fmt.Fprint(w, "OK")
			}))
			defer server.Close()
			p, warned := pinger(t, strings.Replace(server.URL, "://", "://u:pw@", 1)+base)
			r := aRun()
			p.Start(Run{Name: r.Name, Host: r.Host, Token: r.Token, Period: r.Period})
			r.Exit, r.Outcome = 3, Exited
			p.End(t.Context(), r)
			start := "POST " + strings.Replace(want, "ID", p.id, 1)
			wanted := []string{
				start, "u:pw", "name: backup\nhost: web-1\nperiod: 2026-11-29T03:00:00Z\n",
				strings.Replace(start, "/start", "/3", 1), "u:pw", "name: backup\nhost: web-1\nperiod: 2026-11-29T03:00:00Z\noutcome: exited\nexit: 3\nduration: 41.25s\n",
			}
			if !slices.Equal(got, wanted) {
				t.Errorf("got\n%q, want\n%q", got, wanted)
			}
			if w := warned.all(); len(w) > 0 {
				t.Error(w)
			}
		})
	}
}

// One check stands for the job on all hosts: who never held the lock says nothing.
func TestOnlyTheRunnerPings(t *testing.T) {
	for _, test := range []struct {
		token   uint64
		outcome string
		want    string
	}{
		{25, Exited, "/0"}, {25, Lost, "/0"}, {25, Failed, "/0"}, {25, Stopped, "/0"},
		{0, Conflict, ""}, {0, Failed, ""}, {0, Interrupted, ""}, {25, DoneAlready, ""}, {25, Conflict, ""},
	} {
		var got string
		p, _ := pinger(t, "http://127.0.0.1:1")
		p.client.Transport = inFakeTime(func(r *http.Request) (*http.Response, error) { got += r.URL.Path; return answer(200, "OK") })
		p.End(t.Context(), Run{Token: test.token, Outcome: test.outcome})
		if got != test.want {
			t.Errorf("token %d, %s: pinged %q, want %q", test.token, test.outcome, got, test.want)
		}
	}
}

func TestPingCodes(t *testing.T) {
	for exit, want := range map[int]string{0: "/0", 1: "/1", 79: "/79", 143: "/143", 255: "/255", 256: "/255", -1: "/0"} {
		var got string
		p, _ := pinger(t, "http://127.0.0.1:1")
		p.client.Transport = inFakeTime(func(r *http.Request) (*http.Response, error) { got += r.URL.Path; return answer(200, "OK") })
		p.End(t.Context(), Run{Token: 1, Exit: exit})
		if got != want {
			t.Errorf("exit %d: %q, want %q", exit, got, want)
		}
	}
}

// What a ping may cost: nothing at the start, 2 s at the end.
func TestPingTakesItsTime(t *testing.T) {
	for _, test := range []struct {
		name     string
		runs     time.Duration // how long the command runs
		start    func(*http.Request) (*http.Response, error)
		end      func(*http.Request) (*http.Response, error)
		takes    time.Duration
		warnings []string
	}{
		{"both answer", time.Hour, ok, ok, 0, nil},
		{"the end hangs", time.Hour, ok, hang, 2 * time.Second, []string{"(7): no answer in time"}},
		{"both hang, a long run", time.Hour, hang, hang, 2 * time.Second, []string{"(start): no answer in time", "(7): no answer in time"}},
		{"both hang, a short run", 0, hang, hang, 2 * time.Second, []string{"(start): no answer before the run ended", "(7): no answer in time"}},
		{"the start hangs, a short run", 0, hang, ok, time.Second, []string{"(start): no answer before the run ended"}},
		{"the start is slow, a short run", 0, after(700*time.Millisecond, 200), ok, 700 * time.Millisecond, nil},
		{"the start comes before the end", 0, after(900*time.Millisecond, 200), after(1099*time.Millisecond, 200), 1999 * time.Millisecond, nil},
		{"500 for a while", time.Hour, ok, failing(2, 500), 600 * time.Millisecond, nil},
		{"500 all the time", time.Hour, ok, failing(9, 500), 600 * time.Millisecond, []string{"(7): the answer is 500 Internal Server Error"}},
		{"500, slowly", time.Hour, ok, after(1500*time.Millisecond, 500), 2 * time.Second, []string{"(7): no answer in time"}},
		{"404", time.Hour, ok, failing(9, 404), 0, []string{"(7): the answer is 404 Not Found"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, warned := pinger(t, "https://example.com/"+secret)
				p.client.Transport = inFakeTime(func(r *http.Request) (*http.Response, error) {
					if strings.HasSuffix(r.URL.Path, "/start") {
						return test.start(r)
					}
					return test.end(r)
				})
				began := time.Now()
				p.Start(aRun())
				if took := time.Since(began); took != 0 {
					t.Errorf("the start took %s", took)
				}
				time.Sleep(test.runs)
				r := aRun()
				r.Exit = 7
				began = time.Now()
				p.End(t.Context(), r)
				if took := time.Since(began); took != test.takes {
					t.Errorf("the end took %s, want %s", took, test.takes)
				}
				var want []string
				for _, w := range test.warnings {
					want = append(want, "cannot ping https://example.com "+w)
				}
				if got := warned.all(); !slices.Equal(got, want) {
					t.Errorf("warnings %q, want %q", got, want)
				}
			})
		})
	}
}

func ok(*http.Request) (*http.Response, error) { return answer(200, "OK") }

func after(d time.Duration, code int) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		if !pause(r.Context(), d) {
			return nil, r.Context().Err()
		}
		return answer(code, "")
	}
}

func failing(times, code int) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		if times--; times < 0 {
			return answer(200, "OK")
		}
		return answer(code, "")
	}
}

// A caller in a hurry is obeyed.
func TestPingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, warned := pinger(t, "https://example.com/"+secret)
		p.client.Transport = inFakeTime(hang)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		p.Start(aRun())
		p.End(ctx, aRun())
		if took := time.Since(began); took != 300*time.Millisecond || len(warned.all()) != 2 {
			t.Errorf("the end took %s; %q", took, warned.all())
		}
	})
}

// Whatever a server does: one warning, which has nothing of the secrets, neither ours nor
// those that it sends back.
func TestPingFailures(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request, to string, code int) {
		w.Header().Set("Location", to)
		w.WriteHeader(code)
	}
	handlers := map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"answers 500": {func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, r.RequestURI, http.StatusInternalServerError)
		}, "the answer is 500 Internal Server Error"},
		"answers 409":        {func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.RequestURI, http.StatusConflict) }, "the answer is 409 Conflict"},
		"answers 799":        {func(w http.ResponseWriter, r *http.Request) { http.Error(w, r.RequestURI, 799) }, "the answer is 799"},
		"unknown check":      {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "OK (not found)") }, "the answer is 200 OK (not found)"},
		"too many pings":     {func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "OK (rate limited)") }, "the answer is 200 OK (rate limited)"},
		"redirects for ever": {func(w http.ResponseWriter, r *http.Request) { echo(w, r, r.RequestURI+"/x", 307) }, "more than 3 redirects"},
		"redirects as GET":   {func(w http.ResponseWriter, r *http.Request) { echo(w, r, r.RequestURI+"/x", 302) }, "more than 3 redirects"},
		"a broken redirect":  {func(w http.ResponseWriter, r *http.Request) { echo(w, r, "http://[%zz"+r.RequestURI, 302) }, "no usable answer"},
		"a foreign redirect": {func(w http.ResponseWriter, r *http.Request) { echo(w, r, "gopher://127.0.0.1"+r.RequestURI, 302) }, "no usable answer"},
		"an empty redirect":  {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(302) }, "the answer is 302 Found"},
		"closes":             {func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, "the connection was closed without an answer"},
		"isn't HTTP":         {func(w http.ResponseWriter, r *http.Request) { raw(w, "220 mail.example.com "+r.RequestURI+"\r\n") }, "no usable answer"},
		"sends endless headers": {func(w http.ResponseWriter, r *http.Request) {
			raw(w, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat(r.RequestURI, 10000)+"\r\n\r\n")
		}, "no usable answer"},
	}
	for name, test := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			defer server.Close()
			fails(t, server.URL, test.want)
		})
	}
	t.Run("refuses", func(t *testing.T) {
		t.Parallel()
		fails(t, "http://127.0.0.1:1", "connection refused")
	})
	t.Run("has an unknown certificate", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = discard()
		server.StartTLS()
		defer server.Close()
		fails(t, server.URL, "certificate signed by unknown authority")
	})
	t.Run("speaks no TLS", func(t *testing.T) {
		t.Parallel()
		server := httptest.NewServer(http.NotFoundHandler())
		defer server.Close()
		fails(t, strings.Replace(server.URL, "http:", "https:", 1), "no usable answer")
	})
	t.Run("redirects to http", func(t *testing.T) {
		t.Parallel()
		asked := false
		plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
		defer plain.Close()
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { echo(w, r, plain.URL+r.RequestURI, 307) }))
		defer server.Close()
		fails(t, server.URL, "redirected from https to http", func(p *Pinger) {
			p.client.Transport.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
		})
		if asked {
			t.Error("the URL was sent without encryption")
		}
	})
}

// fails: an end that is sent to base with secrets in every place is one warning, with want.
func fails(t *testing.T, base, want string, prepare ...func(*Pinger)) {
	t.Helper()
	host := strings.TrimPrefix(strings.TrimPrefix(base, "http://"), "https://")
	p, warned := pinger(t, strings.Replace(base, "://", "://hidden-user:hidden-word@", 1)+"/hidden%2Fpath/"+secret+"?key=hidden-query")
	for _, f := range prepare {
		f(p)
	}
	p.End(t.Context(), aRun())
	got := warned.all()
	scheme, _, _ := strings.Cut(base, "://")
	if len(got) != 1 || !strings.HasPrefix(got[0], "cannot ping "+scheme+"://"+host+" (0): ") || !strings.Contains(got[0], want) {
		t.Errorf("warnings %q, want one with %q", got, want)
	}
	for _, w := range got {
		if strings.Contains(w, "hidden") || strings.Contains(w, secret) || strings.Contains(w, p.id) || strings.Contains(w, "\n") {
			t.Errorf("%q tells a secret", w)
		}
	}
}

func raw(w http.ResponseWriter, text string) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer c.Close()
	io.WriteString(c, text)
}

// Servers that hang, in real time: each may cost the end 2 s, and the bound here is for those
// that would take for ever.
func TestPingSurvivesHangingServers(t *testing.T) {
	stop := make(chan struct{})
	handlers := map[string]struct {
		handler http.HandlerFunc
		warn    bool
	}{
		"says nothing": {func(http.ResponseWriter, *http.Request) { <-stop }, true},
		"says half of it": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "OK")
			w.(http.Flusher).Flush()
			<-stop
		}, false},
		"sends megabytes": {flood, false},
		"floods a redirect": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", r.RequestURI+"/x")
			w.WriteHeader(307)
			flood(w, r)
		}, true},
	}
	var ends sync.WaitGroup
	for name, test := range handlers {
		server := httptest.NewServer(test.handler)
		defer server.Close()
		ends.Go(func() {
			p, warned := pinger(t, server.URL+"/"+secret)
			p.Start(aRun())
			ended := make(chan struct{})
			go func() { p.End(t.Context(), aRun()); close(ended) }()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Errorf("%s: the end waits for ever", name)
			}
			if got := warned.all(); len(got) > 0 != test.warn {
				t.Errorf("%s: warnings %q", name, got)
			}
		})
	}
	ends.Wait()
	close(stop) // the handlers must end for the servers to
}

func flood(w http.ResponseWriter, r *http.Request) {
	for chunk := make([]byte, 1<<20); r.Context().Err() == nil; {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// Of an answer only a little is read.
func TestPingReadsLittle(t *testing.T) {
	body := &endless{}
	p, _ := pinger(t, "https://example.com/"+secret)
	p.client.Transport = inFakeTime(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: body, Header: http.Header{}}, nil
	})
	p.End(t.Context(), aRun())
	if body.read > maxAnswer || !body.closed {
		t.Errorf("read %d bytes, closed: %v", body.read, body.closed)
	}
}

type endless struct {
	read   int
	closed bool
}

func (e *endless) Read(b []byte) (int, error) { e.read += len(b); return len(b), nil }
func (e *endless) Close() error               { e.closed = true; return nil }

// Three redirects are followed, as POST where the server says so.
func TestPingFollowsRedirects(t *testing.T) {
	for redirects := 0; redirects <= maxRedirects+1; redirects++ {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			got = append(got, fmt.Sprintf("%s %t", r.Method, strings.Contains(string(body), "outcome: exited")))
			if len(got) <= redirects {
				http.Redirect(w, r, "/moved", http.StatusPermanentRedirect)
			}
		}))
		p, warned := pinger(t, server.URL+"/"+secret)
		p.End(t.Context(), aRun())
		server.Close()
		want := slices.Repeat([]string{"POST true"}, min(redirects, maxRedirects)+1)
		if !slices.Equal(got, want) || (len(warned.all()) == 0) != (redirects <= maxRedirects) {
			t.Errorf("%d redirects: got %q, want %q; %q", redirects, got, want, warned.all())
		}
	}
}

// net/http would tell the URL to whoever is redirected to.
func TestPingRedirectTellsNobody(t *testing.T) {
	var header http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { header = r.Header.Clone() }))
	defer other.Close()
	server := httptest.NewServer(http.RedirectHandler(strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/elsewhere", http.StatusTemporaryRedirect))
	defer server.Close()
	p, warned := pinger(t, strings.Replace(server.URL, "://", "://u:pw@", 1)+"/"+secret)
	p.End(t.Context(), aRun())
	if len(warned.all()) > 0 || header == nil || header.Get("Referer") != "" || header.Get("Authorization") != "" {
		t.Errorf("the other host got %q; %q", header, warned.all())
	}
}

// The environment's proxy is read once a process, hence the second one.
func TestPingByProxy(t *testing.T) {
	if os.Getenv("TELLING_TEST_PING") == "1" {
		p, warned := pinger(t, "http://check.example.com/"+secret)
		p.End(t.Context(), aRun())
		fmt.Println("warnings", len(warned.all()))
		return
	}
	asked := ""
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked = r.Method + " " + r.URL.Host + r.URL.Path }))
	defer proxy.Close()
	c := exec.Command(os.Args[0], "-test.run=^TestPingByProxy$")
	c.Env = append(os.Environ(), "TELLING_TEST_PING=1", "HTTP_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "NO_PROXY=", "no_proxy=", "REQUEST_METHOD=")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "warnings 0") || asked != "POST check.example.com/"+secret+"/0" {
		t.Errorf("the proxy was asked for %q; %v\n%s", asked, err, out)
	}
}

func TestBadPingURL(t *testing.T) {
	for _, bad := range []string{"", " ", "hidden", "hidden.example.com/x", "ftp://hidden/x", "http://", "http:///hidden", "https://hidden:port/", "http://%zzhidden/", "http://a b/hidden", "https://example.com/\nhidden", "https://example.com/" + strings.Repeat("hidden", 1000), "https://:443/hidden"} {
		p, err := NewPinger(bad, NewID(), nil)
		if err == nil {
			t.Errorf("%q is taken: %v", bad, p.base)
			continue
		}
		if strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q tells the URL", err)
		}
	}
}

func TestReadPingFile(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"https://example.com/x":          "https://example.com/x",
		"  https://example.com/x \r\n\n": "https://example.com/x",
		"":                               "is empty", " \n": "is empty",
		"hidden\nhidden": "more than one word", "a hidden": "more than one word",
		strings.Repeat("hidden", 1000): "is longer than 2048 bytes",
	} {
		path := filepath.Join(dir, "url")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadPingFile(path)
		switch {
		case err == nil && got != want:
			t.Errorf("%q: %q, want %q", text, got, want)
		case err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "hidden")):
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for _, path := range []string{filepath.Join(dir, "none"), dir} {
		if _, err := ReadPingFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNewID(t *testing.T) {
	a, b := NewID(), NewID()
	if a == b || !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(a) {
		t.Errorf("%s, %s", a, b)
	}
}

// Errors that the lists of known ones don't have are not printed.
func TestReasonIsReticent(t *testing.T) {
	if got := reason(&url.Error{Op: "Post", URL: "https://example.com/hidden", Err: errors.New("hidden")}); got != "no usable answer" {
		t.Error(got)
	}
}
