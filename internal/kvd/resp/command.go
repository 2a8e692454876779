package resp

import (
	"bytes"
	"fmt"
	"strings"
	"unsafe"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// flags say how to treat a command.
type flags uint16

const (
	isWrite    flags = 1 << iota // changes the store
	isRead                       // reads the store
	anybody                      // permitted before login
	always                       // permitted while the store is loading
	notQueued                    // executed at once in MULTI
	notInMulti                   // not permitted in MULTI
	isFast
)

// command describes a command.
type command struct {
	name              string // in lower case
	arity             int    // number of arguments, including the name; -n: at least n
	flags             flags
	first, last, step int // which arguments are keys, as in COMMAND INFO
	run               func(k *call)
	group             string
	summary           string
}

// table has the commands by their lower-case names.
type table map[string]*command

func newTable() table {
	t := make(table)
	for _, list := range [][]command{
		stringCommands(), keyCommands(), transactionCommands(), connectionCommands(),
		clusterCommands(), serverCommands(), weirCommands(), scriptCommands(),
	} {
		for i := range list {
			t[list[i].name] = &list[i]
		}
	}
	return t
}

// maxName is longer than any command name.
const maxName = 32

// find finds a command, ignoring case.
func (t table) find(name []byte) *command {
	if len(name) > maxName {
		return nil
	}
	var lower [maxName]byte
	for i, c := range name {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return t[string(lower[:len(name)])]
}

func (m *command) takes(n int) bool {
	return n == m.arity || m.arity < 0 && n >= -m.arity
}

// keys returns the keys among args.
func (m *command) keys(args [][]byte) [][]byte {
	if m.first == 0 || len(args) <= m.first {
		return nil
	}
	last := m.last
	if last < 0 {
		last += len(args)
	}
	var keys [][]byte
	for i := m.first; i <= last && i < len(args); i += m.step {
		keys = append(keys, args[i])
	}
	return keys
}

// call is the execution of a command. What a handler appends to the encoder is the answer,
// unless it sends a request to the store.
type call struct {
	encoder
	c       *conn
	cmd     *command
	args    [][]byte // the command's name first
	to      *answer
	reply   *Reply
	txn     *transaction // being built by EXEC; nil outside of it
	level   Level
	certain bool // see Request.Certain
	asked   bool // the answer depends on a result
}

// command executes a command, queues it or refuses it.
func (c *conn) command(args [][]byte, size int) {
	r := c.newReply(size)
	cmd := c.srv.table.find(args[0])
	if why := c.refusal(cmd, args); why != "" {
		switch {
		case cmd != nil && cmd.name == "exec":
			c.multi, c.watched = nil, watched{}
			why = "EXECABORT Transaction discarded because of: " + strings.TrimPrefix(why, "ERR ")
		case c.multi != nil:
			c.multi.spoiled = true
		}
		c.answer(r, func(e *encoder) { e.fail(why) })
		return
	}
	if c.multi != nil && cmd.flags&notQueued == 0 {
		if why := c.enqueue(cmd, args); why != "" {
			c.answer(r, func(e *encoder) { e.fail(why) })
			return
		}
		c.answer(r, func(e *encoder) { e.simple("QUEUED") })
		return
	}
	k := &c.call
	*k = call{c: c, cmd: cmd, args: args, to: &r.answer, reply: r, level: c.level, encoder: encoder{b: r.answer.text, proto: c.proto}}
	cmd.run(k)
	k.end()
	if !k.asked {
		r.Done(noResult, nil)
	}
	if cmd.flags&(isRead|isWrite) != 0 {
		c.caching = cachingDefault
	}
}

// end stores an answer that needs no result. It waits for its turn like those of the store.
func (k *call) end() {
	if !k.asked {
		k.to.text = k.b
		k.reply.cost += len(k.b)
	}
}

var noResult wire.Result

// answer completes r with what write encodes.
func (c *conn) answer(r *Reply, write func(e *encoder)) {
	e := encoder{b: r.answer.text, proto: c.proto}
	write(&e)
	r.answer.text = e.b
	r.Done(noResult, nil)
}

// refusal returns the error if a command is not permitted, with the checks in Redis' order.
func (c *conn) refusal(cmd *command, args [][]byte) string {
	switch {
	case cmd == nil:
		return unknownCommand(args)
	case !cmd.takes(len(args)):
		return wrongNumber(cmd.name)
	case c.user == nil && cmd.flags&anybody == 0:
		return "NOAUTH Authentication required."
	case c.user != nil && c.user.ReadOnly && cmd.flags&isWrite != 0:
		return "NOPERM User " + c.user.Name + " has no permissions to run the '" + cmd.name + "' command"
	case c.multi != nil && cmd.flags&notInMulti != 0:
		return "ERR Command not allowed inside a transaction"
	}
	if cmd.flags&(isRead|isWrite) != 0 {
		return c.redirect(cmd, args)
	}
	return ""
}

func wrongNumber(name string) string {
	return "ERR wrong number of arguments for '" + name + "' command"
}

// wrongArity answers a subcommand with a wrong number of arguments.
func (k *call) wrongArity() {
	k.fail(wrongNumber(k.cmd.name + "|" + strings.ToLower(string(k.args[1]))))
}

// unknownSub answers HELP and unknown subcommands.
func (k *call) unknownSub() {
	if is(k.args[1], "HELP") {
		k.array(1)
		k.simple(strings.ToUpper(k.cmd.name) + ": " + k.cmd.summary)
		return
	}
	k.fail(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try %s HELP.", k.args[1], strings.ToUpper(k.cmd.name)))
}

// unknownCommand uses Redis' wording, and says more if Redis has the command and weir does not.
func unknownCommand(args [][]byte) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ERR unknown command '%.128s', with args beginning with: ", args[0])
	for _, a := range args[1:] {
		if b.Len() >= 160 {
			break
		}
		fmt.Fprintf(&b, "'%.*s' ", 128, a)
	}
	if why := missing(strings.ToLower(string(args[0][:min(len(args[0]), maxName)]))); why != "" {
		b.WriteString("(" + why + ")")
	}
	return b.String()
}

// missing says why weir does not have a command of Redis.
func missing(name string) string {
	const notInWeir = "not in weir"
	const stringsOnly = "weir holds strings only: no lists, sets, hashes, sorted sets or streams"
	switch name {
	case "eval_ro", "evalsha_ro", "fcall", "fcall_ro", "function":
		return "weir runs no scripts: use MULTI with WATCH, or WEIR.CAS"
	case "subscribe", "psubscribe", "ssubscribe", "publish", "spublish", "unsubscribe", "punsubscribe", "pubsub":
		return "weir has no channels: use CLIENT TRACKING or WEIR.WATCH"
	case "setbit", "getbit", "bitcount", "bitpos", "bitop", "bitfield", "pfadd", "pfcount", "pfmerge", "sort", "sort_ro", "object":
		return notInWeir
	case "move", "swapdb":
		return "weir has one database"
	case "replicaof", "slaveof", "failover":
		return "weir elects its leader: see weir kv member"
	case "bgsave", "save", "bgrewriteaof", "lastsave":
		return "weir has on disk what it has answered"
	case "psync", "sync", "shutdown", "monitor", "debug":
		return notInWeir
	}
	if strings.HasPrefix(name, "geo") || otherTypes[name] {
		return stringsOnly
	}
	return ""
}

// otherTypes are Redis' commands on other types than strings.
var otherTypes = func() map[string]bool {
	names := make(map[string]bool)
	for name := range strings.FieldsSeq(`
		lpush lpushx rpush rpushx lpop rpop llen lrange lindex lset lrem ltrim linsert lpos lmove lmpop rpoplpush
		blpop brpop blmove blmpop brpoplpush bzpopmin bzpopmax bzmpop
		sadd srem smembers sismember smismember scard spop srandmember smove sinter sinterstore sintercard sunion sunionstore sdiff sdiffstore sscan
		hset hsetnx hget hmset hmget hgetall hdel hexists hincrby hincrbyfloat hkeys hvals hlen hstrlen hrandfield hscan
		zadd zrem zscore zmscore zincrby zcard zcount zlexcount zrange zrangestore zrangebyscore zrangebylex zrevrange zrevrangebyscore
		zrevrangebylex zrank zrevrank zpopmin zpopmax zrandmember zremrangebyrank zremrangebyscore zremrangebylex zinter zinterstore
		zintercard zunion zunionstore zdiff zdiffstore zscan zmpop
		xadd xread xreadgroup xrange xrevrange xlen xdel xtrim xack xclaim xautoclaim xpending xgroup xinfo xsetid`) {
		names[name] = true
	}
	return names
}()

// ask sends a command to the store; s renders its result.
func (k *call) ask(cmd wire.Command, s shape) {
	if k.refused(&cmd) {
		return
	}
	s.n = 1
	k.to.shape = s
	k.asked = true
	k.reply.cost += k.c.roomFor(&cmd)
	k.track(&cmd)
	if k.txn != nil {
		k.txn.commands = append(k.txn.commands, cmd)
		return
	}
	k.c.batch = append(k.c.batch, Request{Command: cmd, Level: k.level, Certain: k.certain, Reply: k.reply})
}

// askAll sends several commands that take effect atomically.
func (k *call) askAll(s shape, cmds ...wire.Command) {
	for i := range cmds {
		if k.refused(&cmds[i]) {
			return
		}
	}
	s.n = len(cmds)
	k.to.shape = s
	k.asked = true
	for i := range cmds {
		k.track(&cmds[i])
	}
	if k.txn != nil {
		k.txn.commands = append(k.txn.commands, cmds...)
		return
	}
	all := wire.Command{Verb: wire.Transaction, Commands: cmds}
	k.reply.cost += k.c.roomFor(&all)
	k.c.batch = append(k.c.batch, Request{Command: all, Level: k.level, Certain: k.certain, Reply: k.reply})
}

// roomFor estimates the size of the answer to a small request, beside the values of a query.
func (c *conn) roomFor(cmd *wire.Command) int {
	const each = 100 // in bytes: about what a key takes in a result
	if answersWithValues(cmd) {
		return c.srv.cfg.MaxInFlightBytes / maxValueWrites
	}
	switch cmd.Verb {
	case wire.Many:
		return each * len(cmd.Keys)
	case wire.Range:
		if n := cmd.Limit; n > 0 && n < wire.MaxResult/each {
			return each * int(n)
		}
		return wire.MaxResult
	default:
		return 0
	}
}

// refused answers a command that the store would reject.
func (k *call) refused(cmd *wire.Command) bool {
	err := cmd.ValidateParsed()
	if err == nil && k.reply.cost > wire.MaxCommand/2 {
		err = cmd.Validate()
	}
	if need := cmd.Needs(); err == nil && need > 1 && need > k.c.srv.backend.Status().Format {
		err = fmt.Errorf("a member runs an older version that does not know this command: upgrade all replicas (weir kv status)")
	}
	if err != nil {
		k.fail("ERR " + err.Error())
	}
	return err != nil
}

// borrow returns a string that shares the memory of an argument. It is valid until the turn is
// submitted.
func borrow(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// borrowAll does the same for several arguments.
func borrowAll(args [][]byte) []string {
	keys := make([]string, len(args))
	for i, a := range args {
		keys[i] = borrow(a)
	}
	return keys
}

// is compares an argument with an upper-case word, ignoring case.
func is(arg []byte, word string) bool {
	return len(arg) == len(word) && bytes.EqualFold(arg, []byte(word))
}
