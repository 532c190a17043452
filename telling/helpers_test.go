package telling

import (
	"io"
	"log"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func discard() *log.Logger { return log.New(io.Discard, "", 0) }

// Off is nil: a caller needs no ifs.
func TestNilIsOff(t *testing.T) {
	var (
		p *Pinger
		r *ResultFile
		f *Textfile
		m *Metrics
		s *Server
	)
	p.Start(aRun())
	p.End(t.Context(), aRun())
	if err := r.Write(aRun()); err != nil {
		t.Error(err)
	}
	if err := f.Write(aRun()); err != nil {
		t.Error(err)
	}
	useAll(m)
	s.Close()
}
