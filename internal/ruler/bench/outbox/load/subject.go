package outboxload

import (
	"context"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// Subject is an outbox under test: weir's own or another one.
type Subject interface {
	// Reset empties the tables, and creates them if needed. No relay runs meanwhile.
	Reset(ctx context.Context) error

	// Seed commits messages, all in one transaction. It is called from several goroutines at
	// once; the messages of a key come from one of them, in order.
	Seed(ctx context.Context, msgs []Message) error

	// Enqueue commits one message, in the way that the subject was made for. It is called from
	// several goroutines at once.
	Enqueue(ctx context.Context, m Message) error

	// Pending counts the messages that are committed and not recorded as delivered.
	Pending(ctx context.Context) (int64, error)

	// Relay makes a relay that calls deliver with all messages of each call to its broker, from
	// any goroutine. The broker confirms at once.
	Relay(deliver func(payloads [][]byte)) (Relay, error)

	// Settings are the settings in effect, with defaults.
	Settings() map[string]string
}

// Relay delivers the messages in the table.
type Relay interface {
	// Run relays until ctx ends, then finishes what it has begun.
	Run(ctx context.Context) error
	// Ready blocks until the relay works as intended: leads, follows the log.
	Ready(ctx context.Context) error
	// Pause returns when the relay has stopped reading; Resume lets it continue.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	// Acked is how many deliveries were recorded in the database so far; negative if the relay
	// does not report it.
	Acked() int64
}

// Watch reads the usage of other processes, by role.
type Watch map[string]func() (measure.Usage, error)

// usage is a reading of all processes and of the machine.
type usage struct {
	roles   map[string]measure.Usage
	machine measure.MachineCounters
}

func (w Watch) read() (usage, error) {
	u := usage{roles: make(map[string]measure.Usage), machine: measure.ReadMachine()}
	for role, f := range w {
		got, err := f()
		if err != nil {
			return u, err
		}
		u.roles[role] = got
	}
	self, err := measure.Self()
	u.roles[bench.RoleClient] = self
	return u, err
}

// since stores the usage between two readings in a sample.
func (u usage) since(before usage, s *bench.Sample) {
	s.Processes = make(map[string]measure.Usage)
	for role, v := range u.roles {
		s.Processes[role] = v.Since(before.roles[role])
	}
	machine := u.machine.Since(before.machine)
	s.Machine = &machine
}
