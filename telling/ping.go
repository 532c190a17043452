package telling

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	// endLimit is how long the end of a run may be delayed, by both of its pings together.
	endLimit = 2 * time.Second
	// startAtEnd is what of it a start ping gets that is still under way when the run ends,
	// so that the two don't overtake each other; as much is left for the end.
	startAtEnd = endLimit / 2
	// startLimit bounds a start ping, which nobody waits for: healthchecks.io's own examples
	// give curl as much (-m 10).
	startLimit = 10 * time.Second

	pingTries    = 3
	pingPause    = 200 * time.Millisecond // before the second try; twice that before the third
	maxRedirects = 3
	maxAnswer    = 512      // bytes of a body that are read: healthchecks' is "OK"
	maxPingURL   = 2 << 10  // bytes
	maxHeaders   = 16 << 10 // bytes
)

// Pinger tells a monitoring service that a run has started and how it ended, by the protocol
// of healthchecks.io (https://healthchecks.io/docs/http_api/): POST URL/start and
// POST URL/EXITCODE, both with the query rid=ID, so that the service measures the time
// between them. A short text in the body is for people.
//
// It serves one run: one Start, one End. A failure is one call of warn, from any goroutine.
type Pinger struct {
	base   *url.URL
	id     string
	warn   func(error)
	client *http.Client

	cancelStart context.CancelFunc
	startIsOver chan struct{} // nil: no start ping was sent
}

// NewPinger checks rawURL and sends nothing. The query in it is kept. id is a UUID ([NewID]).
// The proxy is the environment's (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
func NewPinger(rawURL, id string, warn func(error)) (*Pinger, error) {
	// The errors don't quote it: it is a secret.
	base, err := url.Parse(rawURL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Hostname() == "" {
		return nil, errors.New("cannot ping: this is not a URL like https://example.com/UUID")
	}
	if len(rawURL) > maxPingURL {
		return nil, fmt.Errorf("cannot ping: the URL is longer than %d bytes", maxPingURL)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() // its dial and TLS timeouts
	transport.Proxy = http.ProxyFromEnvironment
	transport.DisableKeepAlives = true  // hours pass between the two
	transport.DisableCompression = true // an answer has the size that it has
	transport.MaxResponseHeaderBytes = maxHeaders
	return &Pinger{base: base, id: id, warn: warn, client: &http.Client{Transport: transport, CheckRedirect: checkRedirect}}, nil
}

// NewID is a random UUID.
func NewID() string {
	var b [16]byte
	rand.Read(b[:])         // it never fails
	b[6] = b[6]&0x0f | 0x40 // version 4, RFC 9562
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ReadPingFile reads a URL that shall not stand in a command line. The file has nothing else.
func ReadPingFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the URL to ping: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPingURL+1))
	if err != nil {
		return "", fmt.Errorf("cannot read the URL to ping: %w", err)
	}
	line := strings.TrimSpace(string(text))
	switch {
	case len(text) > maxPingURL:
		return "", fmt.Errorf("cannot read the URL to ping: %s is longer than %d bytes", path, maxPingURL)
	case line == "":
		return "", fmt.Errorf("cannot read the URL to ping: %s is empty", path)
	case strings.ContainsAny(line, " \t\r\n"):
		return "", fmt.Errorf("cannot read the URL to ping: %s has more than one word", path)
	}
	return line, nil
}

// Start tells that the command has been started. It returns at once. [Pinger.End] ends what
// it began.
func (p *Pinger) Start(r Run) {
	if p == nil || p.startIsOver != nil || !told(r) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	over := make(chan struct{})
	p.cancelStart, p.startIsOver = cancel, over
	go func() {
		defer close(over)
		defer cancel()
		p.send(ctx, "start", startText(r))
	}()
}

// End tells how the run ended, and returns after at most 2 s, or when ctx ends. A start that
// is still under way comes first: one that arrived after the end would tell of a run that
// never ends.
func (p *Pinger) End(ctx context.Context, r Run) {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	p.endStart(ctx)
	if told(r) {
		p.send(ctx, strconv.Itoa(min(max(r.Exit, 0), 255)), endText(r))
	}
}

// endStart waits until the start ping is over, and sees to it.
func (p *Pinger) endStart(ctx context.Context) {
	if p.startIsOver == nil {
		return
	}
	patience := time.NewTimer(startAtEnd)
	defer patience.Stop()
	select {
	case <-p.startIsOver:
	case <-patience.C:
	case <-ctx.Done():
	}
	p.cancelStart()
	<-p.startIsOver
}

// told: only who held the lock tells. One check stands for the job on all hosts, and those
// that wait, or find the period done, have nothing to say about it.
func told(r Run) bool { return r.Token != 0 && r.Outcome != DoneAlready && r.Outcome != Conflict }

// The texts don't have the command: they leave the house, and a command may have secrets.
func startText(r Run) string {
	text := fmt.Sprintf("name: %s\nhost: %s\n", r.Name, r.Host)
	if r.Period != "" {
		text += fmt.Sprintf("period: %s\n", r.Period)
	}
	return text
}

func endText(r Run) string {
	return startText(r) + fmt.Sprintf("outcome: %s\nexit: %d\nduration: %s\n", r.Outcome, r.Exit, r.Ran.Round(time.Millisecond))
}

// send posts to URL/last until it succeeds, pingTries are used up or ctx ends.
func (p *Pinger) send(ctx context.Context, last, text string) {
	err := p.post(ctx, last, text)
	for try := 1; try < pingTries && retryable(err) && pause(ctx, time.Duration(try)*pingPause); try++ {
		err = p.post(ctx, last, text)
	}
	if err != nil {
		p.warn(fmt.Errorf("cannot ping %s://%s (%s): %s", p.base.Scheme, p.base.Host, last, reason(err)))
	}
}

func (p *Pinger) post(ctx context.Context, last, text string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.address(last), strings.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	req.Header.Set("User-Agent", "onlyone")
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return &refusedError{code: resp.StatusCode}
	}
	// healthchecks says 200 to a check that it doesn't know.
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	for _, sorry := range []string{"(not found)", "(rate limited)"} {
		if strings.HasPrefix(string(answer), "OK "+sorry) {
			return &refusedError{code: resp.StatusCode, why: sorry}
		}
	}
	return nil
}

// address is URL/last, with the URL's own query and the run's id.
func (p *Pinger) address(last string) string {
	u := *p.base
	u.RawPath = strings.TrimRight(u.EscapedPath(), "/") + "/" + last
	u.Path = strings.TrimRight(u.Path, "/") + "/" + last
	if u.RawQuery != "" {
		u.RawQuery += "&"
	}
	u.RawQuery += "rid=" + url.QueryEscape(p.id)
	return u.String()
}

var (
	errRedirects = errors.New("more than " + strconv.Itoa(maxRedirects) + " redirects")
	errDowngrade = errors.New("redirected from https to http")
)

// checkRedirect keeps the URL's secret: it isn't shown to whoever is redirected to, nor sent
// without encryption.
func checkRedirect(req *http.Request, via []*http.Request) error {
	req.Header.Del("Referer")
	switch {
	case len(via) > maxRedirects:
		return errRedirects
	case req.URL.Scheme != "https" && via[0].URL.Scheme == "https":
		return errDowngrade
	}
	return nil
}

// refusedError is an answer other than success.
type refusedError struct {
	code int
	why  string
}

func (e *refusedError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("the answer is %d %s %s", e.code, http.StatusText(e.code), e.why))
}

// retryable: it may go better in a moment. Of the answers these are the server's faults.
func retryable(err error) bool {
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return refused.code >= 500
	}
	return err != nil && !errors.Is(err, errRedirects) && !errors.Is(err, errDowngrade)
}

// reason is err in words that have nothing of the URL's path, query or password, nor of what
// the server sent: only errors whose text is known to be free of them are printed.
func reason(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if errors.Is(err, context.Canceled) {
		return "no answer before the run ended"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed without an answer"
	}
	for _, known := range []error{errRedirects, errDowngrade} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	for _, find := range []func(error) error{
		as[*refusedError], as[*net.DNSError], as[*net.OpError],
		as[*tls.CertificateVerificationError], as[x509.HostnameError], as[x509.UnknownAuthorityError], as[tls.RecordHeaderError],
	} {
		if found := find(err); found != nil {
			return found.Error()
		}
	}
	return "no usable answer"
}

func as[E error](err error) error {
	if found, ok := errors.AsType[E](err); ok {
		return found
	}
	return nil
}

// pause reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
