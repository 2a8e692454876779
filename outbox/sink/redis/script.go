package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/weirdb/weir/outbox"
)

// script adds entries. KEYS are the streams. ARGV is MAXLEN or "", then for each message the
// number of its stream, the number of its key (0 for none), the number of fields and values,
// and these. It returns a string for each message: "" if it was added, "=" if it was held back,
// otherwise the error.
var script = redis.NewScript(`
local answers, failed, at = {}, {}, 2
while at <= #ARGV do
  local key, n = ARGV[at + 1], tonumber(ARGV[at + 2])
  local answer = ''
  if key ~= '0' and failed[key] then
    answer = '='
  else
    local add = {'XADD', KEYS[tonumber(ARGV[at])]}
    if ARGV[1] ~= '' then
      add[3], add[4], add[5] = 'MAXLEN', '~', ARGV[1]
    end
    add[#add + 1] = '*'
    for i = at + 3, at + 2 + n do
      add[#add + 1] = ARGV[i]
    end
    local got = redis.pcall(unpack(add))
    if type(got) == 'table' and got.err then
      answer = got.err
      failed[key] = true
    end
  end
  answers[#answers + 1] = answer
  at = at + 3 + n
end
return answers
`)

// batch is one call of Publish.
type batch struct {
	sink   *Sink
	msgs   []outbox.Message
	errs   []error
	failed map[string]bool // keys of which a message failed
	next   int             // the first message that no script has had
	most   int             // messages in one script
	stop   error           // ends the call
}

// run publishes the next messages by one script.
func (b *batch) run(ctx context.Context, l *connection) {
	if err := ctx.Err(); err != nil {
		b.stop = err
		return
	}
	var (
		members []int
		streams []string
		args    = []any{""}
		bytes   int
		numbers = map[string]int{} // of streams
		keys    = map[string]int{}
	)
	if b.sink.opts.MaxLen > 0 {
		args[0] = b.sink.opts.MaxLen
	}
	for ; b.next < len(b.msgs) && len(members) < b.most; b.next++ {
		m := &b.msgs[b.next]
		if m.Key != "" && b.failed[m.Key] {
			b.errs[b.next] = outbox.ErrHeldBack
			continue
		}
		if err := b.sink.check(m); err != nil {
			b.fail(b.next, err)
			continue
		}
		if bytes += len(m.Payload); len(members) > 0 && bytes > maxScriptBytes {
			break
		}
		stream := b.sink.opts.StreamPrefix + m.Topic
		if numbers[stream] == 0 {
			streams = append(streams, stream)
			numbers[stream] = len(streams)
		}
		if m.Key != "" && keys[m.Key] == 0 {
			keys[m.Key] = len(keys) + 1
		}
		args = appendEntry(args, numbers[stream], keys[m.Key], m)
		members = append(members, b.next)
	}
	if len(members) == 0 {
		return
	}
	answers, err := b.sink.eval(ctx, l, streams, args)
	if err == nil && len(answers) != len(members) {
		err = fmt.Errorf("redis: %d answers for %d messages", len(answers), len(members))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		b.refused(members, err)
		return
	}
	for n, i := range members {
		switch answer := answers[n]; answer {
		case "":
		case "=":
			b.errs[i] = outbox.ErrHeldBack
		default:
			b.fail(i, classify(serverError(answer)))
		}
	}
}

// refused handles an error of a whole script: the connection broke, or the server did not run it,
// for instance because the user has no access to one of its streams. In the latter case each
// message is tried on its own.
func (b *batch) refused(members []int, err error) {
	var refusal redis.Error
	switch {
	case outbox.IsUnavailable(err) || !errors.As(err, &refusal):
		for _, i := range members {
			b.errs[i] = err
		}
		b.stop = err
	case len(members) == 1:
		b.fail(members[0], err)
	default:
		b.next, b.most = members[0], 1
	}
}

// serverError is the error of a command in the script.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError implements [redis.Error].
func (serverError) RedisError() {}

func (b *batch) fail(i int, err error) {
	b.errs[i] = err
	if key := b.msgs[i].Key; key != "" {
		b.failed[key] = true
	}
	if outbox.IsUnavailable(err) {
		b.stop = err
	}
}

// check returns an error for a message for which the server would close the connection.
func (s *Sink) check(m *outbox.Message) error {
	switch most := s.bulk.Load(); {
	case int64(len(m.Payload)) > most:
		return outbox.Invalid(fmt.Errorf("redis: the payload has %d bytes, the server takes %d", len(m.Payload), most))
	case len(m.Headers) > maxHeaders:
		return outbox.Invalid(fmt.Errorf("redis: the message has %d headers, at most %d are possible", len(m.Headers), maxHeaders))
	}
	return nil
}

func appendEntry(args []any, stream, key int, m *outbox.Message) []any {
	fields := 4 + 2*len(m.Headers)
	if key != 0 {
		fields += 2
	}
	args = append(args, stream, key, fields, "id", m.Identity())
	if key != 0 {
		args = append(args, "key", m.Key)
	}
	for name, value := range m.Headers {
		args = append(args, FieldHeader+name, value)
	}
	return append(args, "payload", m.Payload)
}

// eval runs the script, by its digest if the server has it, and waits for replicas on the same
// connection. If replicas are missing, the entries stay in the stream and are sent again; so that
// this does not repeat as long as they are missing, eval adds nothing before the replicas have
// what was added last.
func (s *Sink) eval(ctx context.Context, l *connection, keys []string, args []any) ([]string, error) {
	if s.opts.Replicas > 0 && l.unconfirmed {
		replicas, err := l.client.Do(ctx, "WAIT", s.opts.Replicas, s.opts.Timeout.Milliseconds()).Int64()
		if err != nil {
			return nil, classify(err)
		}
		if err := s.checkReplicas(replicas); err != nil {
			return nil, err
		}
	}
	l.unconfirmed = true
	answers, replicas, err := s.evalOnce(ctx, l.client, keys, args, script.EvalSha)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		answers, replicas, err = s.evalOnce(ctx, l.client, keys, args, script.Eval)
	}
	if err != nil {
		return nil, classify(err)
	}
	if err := s.checkReplicas(replicas); err != nil {
		return nil, err
	}
	l.unconfirmed = false
	return answers, nil
}

// checkReplicas returns an error if too few replicas have what was written.
func (s *Sink) checkReplicas(replicas int64) error {
	if replicas < int64(s.opts.Replicas) {
		return outbox.Unavailable(fmt.Errorf("redis: %d replicas have the messages, want %d", replicas, s.opts.Replicas))
	}
	return nil
}

type evalFunc func(ctx context.Context, c redis.Scripter, keys []string, args ...any) *redis.Cmd

func (s *Sink) evalOnce(
	ctx context.Context, client *redis.Client, keys []string, args []any, eval evalFunc,
) (answers []string, replicas int64, err error) {
	if s.opts.Replicas == 0 {
		answers, err = eval(ctx, client, keys, args...).StringSlice()
		return answers, 0, err
	}
	pipe := client.Pipeline()
	cmd, wait := eval(ctx, pipe, keys, args...), pipe.Do(ctx, "WAIT", s.opts.Replicas, s.opts.Timeout.Milliseconds())
	if _, err = pipe.Exec(ctx); err != nil {
		return nil, 0, err
	}
	answers, errAnswers := cmd.StringSlice()
	replicas, errWait := wait.Int64()
	return answers, replicas, errors.Join(errAnswers, errWait)
}
