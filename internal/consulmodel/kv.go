package consulmodel

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Entry is a key. One that is stored is never changed, only replaced.
type Entry struct {
	Key         string
	Value       []byte
	Flags       uint64
	Session     string // holder, "" for none
	LockIndex   uint64
	CreateIndex uint64
	ModifyIndex uint64
}

// equal is Consul's idea of "nothing changed": such a write bumps no index.
func (e *Entry) equal(o *Entry) bool {
	return e.LockIndex == o.LockIndex && e.Flags == o.Flags && e.Session == o.Session && bytes.Equal(e.Value, o.Value)
}

// tombstone keeps the index of a prefix from falling when a key below it is deleted.
type tombstone struct {
	key   string
	index uint64
	at    time.Time
}

// store is the key-value table.
type store struct {
	keys       []*Entry // sorted
	tombstones []tombstone
	index      uint64 // of the last write that changed something
}

func (s *store) clone() store {
	return store{keys: slices.Clone(s.keys), tombstones: slices.Clone(s.tombstones), index: s.index}
}

func (s *store) find(key string) (int, bool) {
	lo, hi := 0, len(s.keys)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if s.keys[mid].Key < key {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(s.keys) && s.keys[lo].Key == key
}

func (s *store) get(key string) *Entry {
	if i, ok := s.find(key); ok {
		return s.keys[i]
	}
	return nil
}

// prefix returns the part of keys that begins with p; it is valid until the next write.
func (s *store) prefix(p string) []*Entry {
	lo, _ := s.find(p)
	hi := lo
	for hi < len(s.keys) && strings.HasPrefix(s.keys[hi].Key, p) {
		hi++
	}
	return s.keys[lo:hi]
}

// list returns the entries below p and the index that Consul gives for them: the highest of the entries and the
// tombstones below p, or that of the whole table if there are none.
func (s *store) list(p string) ([]*Entry, uint64) {
	entries := s.prefix(p)
	if p == "" {
		return entries, s.index
	}
	var index uint64
	for _, e := range entries {
		index = max(index, e.ModifyIndex)
	}
	for _, t := range s.tombstones {
		if t.index > index && strings.HasPrefix(t.key, p) {
			index = t.index
		}
	}
	if index == 0 {
		index = s.index
	}
	return entries, index
}

func (s *store) bury(key string, index uint64) {
	now := time.Now()
	for len(s.tombstones) > 0 && now.Sub(s.tombstones[0].at) > tombstoneTTL {
		s.tombstones = s.tombstones[1:]
	}
	s.tombstones = append(s.tombstones, tombstone{key, index, now})
}

// put stores e, which it owns from then on. Unless withSession, the holder stays.
// On return e's indexes are those of the key.
func (m *Model) put(e *Entry, withSession bool) {
	i, found := m.kv.find(e.Key)
	var old *Entry
	if found {
		old = m.kv.keys[i]
		e.CreateIndex = old.CreateIndex
	} else {
		e.CreateIndex = m.index
	}
	var holder string
	if old != nil {
		holder = old.Session
	}
	if !withSession {
		e.Session = holder
	}
	if old != nil && old.equal(e) {
		e.ModifyIndex = old.ModifyIndex
		return
	}
	e.ModifyIndex = m.index
	m.kv.index = m.index
	if found {
		m.kv.keys[i] = e
	} else {
		m.kv.keys = slices.Insert(m.kv.keys, i, e)
	}
	m.dirty = append(m.dirty, e.Key)
	switch {
	case holder == e.Session:
		m.note(Event{Op: Written, Key: e.Key, Session: holder, Value: e.Value})
	case e.Session != "":
		m.note(Event{Op: Acquired, Key: e.Key, Session: e.Session})
	default:
		m.note(Event{Op: Released, Key: e.Key, Session: holder})
	}
}

func (m *Model) remove(key string) {
	i, found := m.kv.find(key)
	if !found {
		return
	}
	holder := m.kv.keys[i].Session
	m.kv.keys = slices.Delete(m.kv.keys, i, i+1)
	m.kv.bury(key, m.index)
	m.kv.index = m.index
	m.dirty = append(m.dirty, key)
	m.note(Event{Op: Deleted, Key: key, Session: holder})
}

// removeTree deletes all below prefix and leaves one tombstone.
func (m *Model) removeTree(prefix string) {
	entries := m.kv.prefix(prefix)
	if len(entries) == 0 {
		return
	}
	for _, e := range entries {
		m.dirty = append(m.dirty, e.Key)
		m.note(Event{Op: Deleted, Key: e.Key, Session: e.Session})
	}
	i, _ := m.kv.find(entries[0].Key)
	m.kv.keys = slices.Delete(m.kv.keys, i, i+len(entries))
	if prefix != "" {
		m.kv.bury(prefix, m.index)
	}
	m.kv.index = m.index
}

// removeCAS deletes key if its ModifyIndex is index. A key that is missing counts as deleted.
func (m *Model) removeCAS(key string, index uint64) bool {
	e := m.kv.get(key)
	if e == nil || e.ModifyIndex != index {
		return e == nil
	}
	m.remove(key)
	return true
}

// cas is put on condition that the key's ModifyIndex is e.ModifyIndex; 0: that there is no such key.
func (m *Model) cas(e *Entry) bool {
	old := m.kv.get(e.Key)
	if (e.ModifyIndex == 0) != (old == nil) {
		return false
	}
	if old != nil && old.ModifyIndex != e.ModifyIndex {
		return false
	}
	m.put(e, false)
	return true
}

// lock acquires e.Key for e.Session. what is an error's text; false without one means that another holds it.
func (m *Model) lock(e *Entry) (ok bool, what string) {
	if e.Session == "" {
		return false, "missing session"
	}
	if what := m.malformed(e.Session); what != "" {
		return false, what
	}
	if m.sessions[e.Session] == nil {
		return false, fmt.Sprintf("invalid session %#v", e.Session)
	}
	e.LockIndex = 1
	if old := m.kv.get(e.Key); old != nil {
		switch old.Session {
		case e.Session:
			e.LockIndex = old.LockIndex
		case "":
			e.LockIndex = old.LockIndex + 1
		default:
			return false, ""
		}
	}
	m.put(e, true)
	return true, ""
}

// unlock releases e.Key if e.Session holds it, and writes e's value.
func (m *Model) unlock(e *Entry) (ok bool, what string) {
	if e.Session == "" {
		return false, "missing session"
	}
	old := m.kv.get(e.Key)
	if old == nil || old.Session != e.Session {
		return false, ""
	}
	e.Session = ""
	e.LockIndex = old.LockIndex
	m.put(e, true)
	return true, ""
}
