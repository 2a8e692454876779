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

// round is one use of a channel: messages sent, then answered.
type round struct {
	sink    *Sink
	link    *link
	channel *channel
	msgs    []outbox.Message
	part    []int
	errs    []error

	answers []*amqp.DeferredConfirmation // of part; nil for those not sent
	open    bool                         // not every answer has come
	failed  error                        // why a message could not be written
}

// send puts all messages on their way. A write that does not end is ended, with
// its connection, when ctx does.
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
			// The channel is closed, or will be: finish looks why, and at the others.
			r.failed = err
			for _, i := range r.part[n:] {
				r.errs[i] = errAlone
			}
			return
		}
	}
}

// checkFrame refuses headers that do not fit into one frame, for which the broker
// would close the connection. Zero is a broker without a limit.
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

// await waits for the broker's word on each message. changed tells when the
// broker stops to take messages: it then answers none.
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

// refusal is what a message gets that the broker did not confirm: the channel
// was closed, or the queue is full.
func (r *round) refusal() error {
	if r.channel.IsClosed() {
		return errAlone
	}
	return outbox.Busy(errors.New("amqp: the broker refused the message: a queue is full"))
}

// abandon gives the error to all messages from the n-th on that are not
// answered by now.
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

// finish looks at what came back and at why the channel was closed, and gives
// it up or back.
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
		// The connection has ended, and the library has not told the channel yet.
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

// returned notes a message that no queue takes. The broker returns it before it
// confirms it, so that it is here by now. It is known by its identity; two of
// the same identity and address have the same fate.
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

// whyClosed tells a channel that was closed for a message from one that went
// down with its connection.
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

// lost gives those that are left open the end of their connection.
func (r *round) lost(why error) {
	for _, i := range r.part {
		if r.errs[i] == errAlone {
			r.errs[i] = outbox.Broken(fmt.Errorf("amqp: the connection was lost: %w", why))
		}
	}
}
