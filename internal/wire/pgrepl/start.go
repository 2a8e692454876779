package pgrepl

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// LogicalConfig configures logical decoding.
type LogicalConfig struct {
	StreamConfig
	Slot string
	// Start is where to begin if that is after the slot's confirmed position. Default: 0, the
	// confirmed position.
	Start LSN
	// Options are the plugin's options: names and values.
	Options []pgwire.Param
}

// StartLogical starts to stream what a slot's plugin decodes. The connection is in use until
// the stream has ended. It cannot be used for a second logical stream: servers remember that
// the first was ended, and end the second at once.
func (c *Conn) StartLogical(ctx context.Context, cfg LogicalConfig) (*Stream, error) {
	s, err := c.startLogical(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start logical replication from slot %s: %w", cfg.Slot, err)
	}
	return s, nil
}

func (c *Conn) startLogical(ctx context.Context, cfg LogicalConfig) (*Stream, error) {
	if err := checkSlotName(cfg.Slot); err != nil {
		return nil, err
	}
	if c.streamed {
		return nil, errors.New("the connection has streamed before, and servers stream logically once only: open another")
	}
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s", ident(cfg.Slot), cfg.Start)
	for i, o := range cfg.Options {
		separator := ", "
		if i == 0 {
			separator = " ("
		}
		command += separator + ident(o.Name) + " " + literal(o.Value)
	}
	if len(cfg.Options) > 0 {
		command += ")"
	}
	return c.start(ctx, command, cfg.StreamConfig)
}

// PhysicalConfig configures streaming of the log.
type PhysicalConfig struct {
	StreamConfig
	Slot string // Default: none
	// Start is where to begin. Required.
	Start LSN
	// Timeline is the timeline to stream. The stream of an old timeline ends at its end.
	// Default: 0, the server's current one.
	Timeline uint32
}

// StartPhysical starts to stream the log unchanged. The connection is in use until the stream
// has ended.
func (c *Conn) StartPhysical(ctx context.Context, cfg PhysicalConfig) (*Stream, error) {
	s, err := c.startPhysical(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start physical replication at %s: %w", cfg.Start, err)
	}
	return s, nil
}

func (c *Conn) startPhysical(ctx context.Context, cfg PhysicalConfig) (*Stream, error) {
	command := "START_REPLICATION"
	if cfg.Slot != "" {
		if err := checkSlotName(cfg.Slot); err != nil {
			return nil, err
		}
		command += " SLOT " + ident(cfg.Slot)
	}
	command += " PHYSICAL " + cfg.Start.String()
	if cfg.Timeline != 0 {
		command += fmt.Sprintf(" TIMELINE %d", cfg.Timeline)
	}
	return c.start(ctx, command, cfg.StreamConfig)
}

// start sends the command and reads up to the beginning of the stream.
func (c *Conn) start(ctx context.Context, command string, cfg StreamConfig) (*Stream, error) {
	if err := errors.Join(cfg.validate(), checkText(command)); err != nil {
		return nil, err
	}
	s := &Stream{conn: c, cfg: cfg.withDefaults(), pulse: make(chan struct{}), stop: func() {}}
	if err := c.write(ctx, pgwire.AppendQuery(nil, command)); err != nil {
		return nil, err
	}
	for {
		typ, body, err := c.peek(ctx)
		if err != nil {
			return nil, c.fail(err)
		}
		switch typ {
		case pgwire.ServerCopyBothResponse:
			c.take(body)
			c.streamed = true
			pulse, stop := context.WithCancel(c.life)
			s.stop = stop
			go s.beat(pulse)
			return s, nil
		case pgwire.ServerRowDescription, pgwire.ServerCommandComplete:
			// An old timeline was requested from its very end: there is nothing to send.
			close(s.pulse)
			s.ended = true
			return s, s.finish(ctx)
		case pgwire.ServerError:
			return nil, c.answer(ctx, func(Result) error { return pgwire.ErrMalformed })
		default:
			c.take(body)
			if err := c.aside(typ, body); err != nil {
				return nil, err
			}
		}
	}
}
