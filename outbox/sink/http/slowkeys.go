package http

import (
	"sync"

	"github.com/weirdb/weir/outbox"
)

// maxSlowKeys is the most keys that are kept.
const maxSlowKeys = 4096

// slowKeys are the keys whose last request timed out. Their requests have separate slots:
// otherwise a route that does not answer would occupy all slots, each until the timeout, and
// leave none for the others.
type slowKeys struct {
	slots chan struct{}

	mu   sync.Mutex
	keys map[string]struct{}
}

func newSlowKeys(slots int) *slowKeys {
	return &slowKeys{slots: make(chan struct{}, slots), keys: map[string]struct{}{}}
}

// nameOf returns the key, or a name made from the id if there is no key.
func nameOf(m *outbox.Message) string {
	if m.Key != "" {
		return m.Key
	}
	return "\x00" + string(m.ID[:])
}

func (l *slowKeys) has(m *outbox.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) == 0 {
		return false
	}
	_, ok := l.keys[nameOf(m)]
	return ok
}

// note records whether the request of a message was answered in time.
func (l *slowKeys) note(m *outbox.Message, inTime bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case inTime && len(l.keys) > 0:
		delete(l.keys, nameOf(m))
	case inTime:
	default:
		for name := range l.keys {
			if len(l.keys) < maxSlowKeys {
				break
			}
			delete(l.keys, name)
		}
		l.keys[nameOf(m)] = struct{}{}
	}
}
