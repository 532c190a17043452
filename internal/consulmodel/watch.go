package consulmodel

import (
	"strings"
	"time"
)

// result is what a query saw; a blocking one that times out answers with the last.
type result struct {
	entries  []*Entry
	sessions []*session
	index    uint64
	notFound bool
	leader   bool
}

// watch is a blocking query that waits for a change.
type watch struct {
	c        *call
	res      result
	min      uint64
	notFound bool // one evaluation has found nothing
	timer    *time.Timer
	gone     bool
}

// watches are the blocking queries, by what wakes them.
type watches struct {
	n       int
	key     map[string][]*watch
	others  []*watch // prefixes, sessions
	scratch []*watch
}

// query answers c, or blocks it until the answer changes.
func (m *Model) query(c *call) {
	res := m.evaluate(c)
	if c.par.index == 0 || (res.index > c.par.index) {
		m.render(c, &res)
		return
	}
	wait := c.par.wait
	switch {
	case wait > maxQueryTime:
		wait = maxQueryTime
	case wait <= 0:
		wait = defaultQueryTime
	}
	w := &watch{c: c, res: res, min: c.par.index, notFound: res.notFound}
	w.timer = m.after(wait+m.jitter(wait/jitterFraction), func() {
		if !w.gone {
			m.watches.drop(w)
			m.render(c, &w.res)
		}
	})
	m.watches.add(w)
}

// evaluate runs the query of c on the present state.
func (m *Model) evaluate(c *call) (r result) {
	r.leader = m.leader
	switch c.req.Endpoint {
	case KVGet:
		if e := m.kv.get(c.req.Key); e != nil {
			r.entries, r.index = []*Entry{e}, e.ModifyIndex
		} else {
			r.notFound, r.index = true, m.kv.index
		}
	case KVList, KVKeys:
		var entries []*Entry
		entries, r.index = m.kv.list(c.req.Key)
		r.entries = make([]*Entry, 0, len(entries))
		for _, e := range entries {
			if m.may(c, KeyRead, e.Key) {
				r.entries = append(r.entries, e)
			}
		}
	case SessionGet:
		r.index = m.sessIdx
		if s := m.sessions[c.req.Session]; s == nil {
			r.notFound = true
		} else if m.may(c, SessionRead, s.Node) {
			r.sessions = []*session{s}
		}
	case SessionList:
		r.index = m.sessIdx
		for _, s := range m.byID() {
			if m.may(c, SessionRead, s.Node) {
				r.sessions = append(r.sessions, s)
			}
		}
	}
	r.index = max(r.index, 1)
	return r
}

// wake evaluates w again and answers it if the index has moved.
func (m *Model) wake(w *watch) {
	if w.gone {
		return
	}
	w.res = m.evaluate(w.c)
	if w.res.notFound && m.opts.Version != V1_8 {
		// Found nothing twice: nothing has changed, whatever the table's index says (GH-12110).
		if w.notFound {
			w.min = max(w.min, w.res.index)
		}
		w.notFound = true
	}
	if w.res.index > w.min {
		w.timer.Stop()
		m.watches.drop(w)
		m.render(w.c, &w.res)
	}
}

func (ws *watches) add(w *watch) {
	ws.n++
	if w.c.req.Endpoint == KVGet {
		if ws.key == nil {
			ws.key = make(map[string][]*watch)
		}
		ws.key[w.c.req.Key] = append(ws.key[w.c.req.Key], w)
		return
	}
	ws.others = append(ws.others, w)
}

func (ws *watches) drop(w *watch) {
	w.gone = true
	ws.n--
	if w.c.req.Endpoint == KVGet {
		key := w.c.req.Key
		if rest := without(ws.key[key], w); len(rest) > 0 {
			ws.key[key] = rest
		} else {
			delete(ws.key, key)
		}
		return
	}
	ws.others = without(ws.others, w)
}

func without(list []*watch, w *watch) []*watch {
	for i, x := range list {
		if x == w {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}

// keys wakes what the change of these keys concerns.
func (ws *watches) keys(m *Model, dirty []string) {
	if ws.n == 0 {
		return
	}
	list := ws.scratch[:0]
	for _, key := range dirty {
		list = append(list, ws.key[key]...)
	}
	if m.opts.Version == V1_8 {
		for _, all := range ws.key {
			for _, w := range all {
				if w.notFound {
					list = append(list, w)
				}
			}
		}
	}
	for _, w := range ws.others {
		if w.c.req.Endpoint != KVList && w.c.req.Endpoint != KVKeys {
			continue
		}
		// A prefix below which nothing is or was has the whole table's index, so that a write elsewhere may wake it: in
		// Consul one whose key is near in its radix tree, here any.
		if len(w.res.entries) == 0 {
			list = append(list, w)
			continue
		}
		for _, key := range dirty {
			if strings.HasPrefix(key, w.c.req.Key) {
				list = append(list, w)
				break
			}
		}
	}
	for _, w := range list {
		m.wake(w)
	}
	clear(list)
	ws.scratch = list[:0]
}

// session wakes what the beginning or end of a session concerns.
func (ws *watches) session(m *Model, id string) {
	if len(ws.others) == 0 {
		return
	}
	for _, w := range append([]*watch(nil), ws.others...) {
		switch w.c.req.Endpoint {
		case SessionList:
			m.wake(w)
		case SessionGet:
			if w.c.req.Session == id {
				m.wake(w)
			}
		}
	}
}

// abandon answers every watch with what it saw last: the store that it looked at is gone.
func (ws *watches) abandon(m *Model) {
	list := append([]*watch(nil), ws.others...)
	for _, all := range ws.key {
		list = append(list, all...)
	}
	for _, w := range list {
		w.timer.Stop()
		ws.drop(w)
		m.render(w.c, &w.res)
	}
}
