package replica

import (
	"sync"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// How many messages, and bytes of them, may wait for the core. A sender that brings more
// waits, and meanwhile nothing is read from its connection.
const (
	inboxMessages = 1 << 16
	inboxBytes    = 256 << 20
)

// An inbox holds what waits for the core goroutine, which takes all of it at
// once. Safe for concurrent use.
type inbox struct {
	mu     sync.Mutex
	room   sync.Cond // too many messages wait
	held   letters
	closed bool

	wake chan struct{} // one token when something is held
}

// letters are what one turn of the core takes.
type letters struct {
	messages []parcel
	count    int // messages in messages
	bytes    int // approximate size
	ticket   uint64
	calls    []func(now consensus.Clock)
}

// A parcel is a batch of messages from one sender, in its order.
type parcel struct {
	from     consensus.Addr
	messages []wire.Message
}

func newInbox() *inbox {
	in := &inbox{wake: make(chan struct{}, 1)}
	in.room.L = &in.mu
	return in
}

// deliver queues messages, and waits while there is no room. The inbox owns
// them from now on. After close they are dropped: the core has ended.
func (in *inbox) deliver(from consensus.Addr, messages []wire.Message) {
	bytes := 0
	for i := range messages {
		bytes += sizeOf(&messages[i])
	}
	in.mu.Lock()
	for (in.held.count >= inboxMessages || in.held.bytes >= inboxBytes) && !in.closed {
		in.room.Wait()
	}
	if !in.closed {
		in.held.messages = append(in.held.messages, parcel{from, messages})
		in.held.count += len(messages)
		in.held.bytes += bytes
	}
	in.mu.Unlock()
	in.poke()
}

// sizeOf is the approximate memory of a message.
func sizeOf(m *wire.Message) int {
	n := 256 + len(m.Data)
	for i := range m.Bundle {
		n += len(m.Bundle[i].Command)
	}
	for i := range m.Records {
		n += sizeOf(&m.Records[i])
	}
	return n
}

// persisted reports that the records up to a ticket are on the disk.
func (in *inbox) persisted(ticket uint64) {
	in.mu.Lock()
	in.held.ticket = max(in.held.ticket, ticket)
	in.mu.Unlock()
	in.poke()
}

// call runs f on the core goroutine, between two turns. It returns false after close, when f
// will not run.
func (in *inbox) call(f func(now consensus.Clock)) bool {
	in.mu.Lock()
	closed := in.closed
	if !closed {
		in.held.calls = append(in.held.calls, f)
	}
	in.mu.Unlock()
	in.poke()
	return !closed
}

// poke wakes the core goroutine for a turn, even if nothing has arrived.
func (in *inbox) poke() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// take exchanges what is queued for spent, whose memory is reused.
func (in *inbox) take(spent letters) letters {
	clear(spent.messages)
	clear(spent.calls)
	spent = letters{messages: spent.messages[:0], calls: spent.calls[:0]}
	in.mu.Lock()
	got := in.held
	in.held = spent
	in.room.Broadcast()
	in.mu.Unlock()
	return got
}

// close releases all senders that wait for room, and accepts nothing more. It returns
// the calls that will not be made.
func (in *inbox) close() []func(now consensus.Clock) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	left := in.held.calls
	in.held = letters{}
	in.room.Broadcast()
	return left
}
