package cli

import (
	"github.com/rs/zerolog"

	"github.com/a-seed-0bc5ead7/onlyone/systemd"
)

// A termStore keeps what "onlyone release" needs, where the unit has a place for it.
type termStore struct {
	dir string // systemd.TermDir
	log zerolog.Logger
}

// keep is called before each acquiring request. That it fails is no reason not to run: then
// the lock is free when its session ends.
func (s termStore) keep(info []byte) {
	if err := systemd.KeepTerm(s.dir, info); err != nil {
		s.log.Warn().Err(err).Msg("cannot write down how to release the lock if this process is killed")
	}
}

// drop is called when the term is released, or wasn't acquired.
func (s termStore) drop(info []byte) {
	if info == nil {
		return
	}
	if err := systemd.DropTerm(s.dir, info); err != nil {
		s.log.Warn().Err(err).Msg("cannot remove what was written down to release the lock")
	}
}
