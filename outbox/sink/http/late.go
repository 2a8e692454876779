package http

import (
	"sync"

	"github.com/weirdb/weir/outbox"
)

// mostLate are the keys that are remembered.
const maxSlowKeys = 4096

// late are the keys whose last request was not answered in time. Their requests have
// slots of their own: a route that takes requests and does not answer them would have
// all that there are, each for as long as the timeout, and others none.
type slowKeys struct {
	slots chan struct{}

	mu   sync.Mutex
	keys map[string]struct{}
}

func newSlowKeys(slots int) *slowKeys {
	return &slowKeys{slots: make(chan struct{}, slots), keys: map[string]struct{}{}}
}

// nameOf is the key, or what stands for it where there is none.
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

// note takes in whether the request of a message was answered in time.
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
