package amqp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/weirdb/weir/outbox"
)

// round is one use of a channel: messages are sent, then answered.
type round struct {
	sink    *Sink
	link    *link
	channel *channel
	msgs    []outbox.Message
	part    []int
	errs    []error

	answers []*amqp.DeferredConfirmation // of part; nil for those not sent
	open    bool                         // some answers are missing
	failed  error                        // why a message could not be written
}

// send sends all messages. If ctx ends during a write, it closes the connection.
func (r *round) send(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = r.link.raw.Close() }) // the library tells everybody
	defer stop()
	r.answers = make([]*amqp.DeferredConfirmation, len(r.part))
	for n, i := range r.part {
		m := &r.msgs[i]
		p, err := r.sink.properties(m)
		if err == nil {
			err = checkFrame(p, r.link.conn.Config.FrameSize)
		}
		if err != nil {
			r.errs[i] = err
			continue
		}
		r.answers[n], err = r.channel.PublishWithDeferredConfirm(
			r.sink.exchange(m), r.sink.opts.RoutingKey.Expand(m), !r.sink.opts.Unroutable, false, p)
		if err != nil {
			// The channel is closed, or will be: finish finds out why.
			r.failed = err
			for _, i := range r.part[n:] {
				r.errs[i] = errAlone
			}
			return
		}
	}
}

// checkFrame returns an error for headers that do not fit into one frame, for which the
// broker would close the connection. Zero means no limit.
func checkFrame(p amqp.Publishing, most int) error {
	const fixed = 14 + 8 + 64 // of the frame, and of properties of a fixed size
	size := fixed + len(p.MessageId) + len(p.ContentType) + len(p.Type)
	for name, value := range p.Headers {
		text, _ := value.(string)
		size += 1 + len(name) + 1 + 4 + len(text)
	}
	if most > 0 && size > most {
		return outbox.Invalid(fmt.Errorf("amqp: the headers take %d bytes, the broker takes %d (frame_max)", size, most))
	}
	return nil
}

// await waits for the broker's answer to each message. changed is closed when the broker
// stops accepting messages: it then does not answer.
func (r *round) await(ctx context.Context, changed <-chan struct{}) {
	timer := time.NewTimer(r.sink.opts.Timeout)
	defer timer.Stop()
	for n, answer := range r.answers {
		for answer != nil {
			var err error
			select {
			case <-answer.Done():
				if !answer.Acked() {
					r.errs[r.part[n]] = r.refusal()
				}
				answer = nil
				continue
			case <-ctx.Done():
				err = ctx.Err()
			case <-timer.C:
				err = outbox.Unavailable(fmt.Errorf("amqp: no confirmation within %v", r.sink.opts.Timeout))
			case <-changed:
				var blocked string
				if blocked, changed = r.link.state(); blocked == "" {
					continue
				}
				err = outbox.Unavailable(errors.New("amqp: " + blocked))
			}
			r.abandon(n, err)
			return
		}
	}
}

// refusal returns the error of a message that the broker did not confirm: the channel was
// closed, or a queue is full.
func (r *round) refusal() error {
	if r.channel.IsClosed() {
		return errAlone
	}
	return outbox.Busy(errors.New("amqp: the broker refused the message: a queue is full"))
}

// abandon sets the error of all messages from the n-th on that are not answered yet.
func (r *round) abandon(n int, err error) {
	for ; n < len(r.part); n++ {
		switch answer := r.answers[n]; {
		case answer == nil || answer.Acked():
		default:
			r.errs[r.part[n]] = err
			r.open = true
		}
	}
}

// finish processes returned messages and the reason why the channel was closed, and releases
// or discards the channel.
func (r *round) finish() (refusal error) {
	for {
		select {
		case back, ok := <-r.channel.returns:
			if ok {
				r.returned(&back)
				continue
			}
		default:
		}
		break
	}
	switch {
	case !r.channel.IsClosed() && r.failed != nil:
		// The connection has ended, and the library has not closed the channel yet.
		r.link.discard(r.channel)
		r.lost(r.failed)
	case !r.channel.IsClosed() && r.open:
		r.link.discard(r.channel)
	case !r.channel.IsClosed():
		r.link.release(r.channel)
	default:
		return r.whyClosed()
	}
	return nil
}

// returned sets the error of a message that was routed to no queue. The broker returns a
// message before it confirms it, so all have arrived. Messages are matched by identity,
// exchange and routing key; two that agree in these are both returned.
func (r *round) returned(back *amqp.Return) {
	for _, i := range r.part {
		m := &r.msgs[i]
		if r.errs[i] == nil && m.Identity() == back.MessageId && r.sink.exchange(m) == back.Exchange &&
			r.sink.opts.RoutingKey.Expand(m) == back.RoutingKey {
			r.errs[i] = fmt.Errorf("amqp: exchange %q has no queue for routing key %q (%s)", back.Exchange, back.RoutingKey, back.ReplyText)
			return
		}
	}
}

// whyClosed returns the broker's error if it closed the channel for a message, or nil if the
// connection was lost.
func (r *round) whyClosed() error {
	var why *amqp.Error
	select {
	case why = <-r.channel.closed:
	default:
	}
	if why != nil && why.Server && !r.link.conn.IsClosed() {
		return why
	}
	if why != nil {
		r.lost(why)
	} else {
		r.lost(cmp.Or(r.failed, error(amqp.ErrClosed)))
	}
	return nil
}

// lost sets the error of the unanswered messages of a lost connection.
func (r *round) lost(why error) {
	for _, i := range r.part {
		if r.errs[i] == errAlone {
			r.errs[i] = outbox.Broken(fmt.Errorf("amqp: the connection was lost: %w", why))
		}
	}
}
