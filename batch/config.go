package batch

import (
	"errors"
	"fmt"
	"time"
)

// ErrFull says that an item was refused because the queue holds as much as
// [Config.Capacity] or [Config.CapacityBytes] allow. Nothing was kept.
var ErrFull = errors.New("batch: full")

// ErrClosed says that an item was refused because the queue is closed.
var ErrClosed = errors.New("batch: closed")

// Defaults of [Config].
const (
	DefaultMaxItems = 256
	DefaultMinLanes = 1
	DefaultMaxLanes = 4
	DefaultCapacity = 64 << 10
	fixedMaxLanes   = 64 // MaxLanes of a fixed window: it must not be the limit
)

// Config says when a group may go. The zero value is the adaptive default and
// right for most uses. All durations are in the units of the time passed in.
type Config struct {
	// Window makes a fixed window: a group goes when its oldest item has
	// waited this long, or when it is full. Zero is adaptive: no window.
	// Default: 0, adaptive.
	Window time.Duration

	// MaxItems is the maximum number of items in one group. Default: 256.
	MaxItems int

	// MaxBytes bounds the sum of the sizes in one group. A larger item goes
	// alone. Default: 0, no limit.
	MaxBytes int

	// MaxWait bounds the wait for a lane or a window. Adaptive: an item that
	// has waited this long goes even if the controller holds lanes back, as
	// long as fewer than MaxLanes are busy; with MaxLanes in flight an item
	// waits longer. Fixed: the window is the smaller of Window and MaxWait.
	// Default: 0, no limit.
	MaxWait time.Duration

	// MinLanes and MaxLanes bound the groups in flight; the controller moves
	// between them. A fixed window has no controller and uses MaxLanes alone.
	// Default: 1 and 4 (64 for a fixed window).
	MinLanes, MaxLanes int

	// Lanes fixes the number of groups in flight and switches the controller
	// off. Default: 0, the controller decides.
	Lanes int

	// NoHold forbids the only wait of the adaptive mode: if measured to be
	// better, a freed lane waits a moment (at most half a flush) for
	// the clients of the groups that just finished to come back, so that they
	// do not split into alternating groups. Set it where there are no timers.
	// Default: false.
	NoHold bool

	// Capacity is the maximum number of waiting items, not counting those in
	// flight. Default: 65536.
	Capacity int

	// CapacityBytes bounds the sum of the sizes of waiting items. An empty
	// queue accepts one larger item. Callers that wait for room get it in their
	// order. Default: 0, no limit.
	CapacityBytes int
}

// withDefaults fills what is zero.
func (c Config) withDefaults() Config {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.MaxItems, DefaultMaxItems)
	set(&c.Capacity, DefaultCapacity)
	if c.Lanes > 0 {
		c.MinLanes, c.MaxLanes = c.Lanes, c.Lanes
	}
	if c.Window > 0 {
		set(&c.MaxLanes, fixedMaxLanes)
	}
	set(&c.MinLanes, DefaultMinLanes)
	set(&c.MaxLanes, max(DefaultMaxLanes, c.MinLanes))
	return c
}

// validate names the first field that makes no sense.
func (c Config) validate() error {
	for _, f := range []struct {
		name string
		v    int64
	}{
		{"Window", int64(c.Window)},
		{"MaxItems", int64(c.MaxItems)},
		{"MaxBytes", int64(c.MaxBytes)},
		{"MaxWait", int64(c.MaxWait)},
		{"MinLanes", int64(c.MinLanes)},
		{"MaxLanes", int64(c.MaxLanes)},
		{"Lanes", int64(c.Lanes)},
		{"Capacity", int64(c.Capacity)},
		{"CapacityBytes", int64(c.CapacityBytes)},
	} {
		if f.v < 0 {
			return fmt.Errorf("batch: %s is negative: %d", f.name, f.v)
		}
	}
	if d := c.withDefaults(); d.MinLanes > d.MaxLanes {
		return fmt.Errorf("batch: MinLanes %d exceeds MaxLanes %d", d.MinLanes, d.MaxLanes)
	}
	return nil
}

// Validate reports the first invalid field: a negative number, or MinLanes
// above MaxLanes. The constructors panic on such a Config, so check one that
// came from a user.
func (c Config) Validate() error { return c.validate() }

// Reason says why a group went.
type Reason uint8

// The reasons. ReasonNone is the zero value: no group went.
const (
	ReasonNone    Reason = iota
	ReasonIdle           // adaptive: a lane was free
	ReasonItems          // MaxItems waited
	ReasonBytes          // MaxBytes waited
	ReasonWindow         // the fixed window was over
	ReasonMaxWait        // MaxWait was over
	ReasonClose          // the queue is being drained
	numReasons
)

var reasonNames = [numReasons]string{"none", "idle", "items", "bytes", "window", "max-wait", "close"}

// String is the name used in metrics: idle, items, bytes, window, max-wait,
// close.
func (r Reason) String() string {
	if r < numReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Reasons lists all reasons for which a group can go.
func Reasons() []Reason {
	return []Reason{ReasonIdle, ReasonItems, ReasonBytes, ReasonWindow, ReasonMaxWait, ReasonClose}
}
