package wire

import (
	"fmt"
	"strconv"
)

// Fields of a Command, as bits of the bitmap that precedes them, in the order of encoding.
const (
	hasKey = 1 << iota
	hasValue
	hasCond
	hasOptions
	hasTTL
	hasDelta
	hasExpect
	hasEquals
	hasLease
	hasEnd
	hasLimit
	hasKeys
	hasPairs
	hasGuards
	hasCommands

	commandFields = hasCommands<<1 - 1
)

func (c *Command) fields() uint64 {
	var f uint64
	set := func(present bool, bit uint64) {
		if present {
			f |= bit
		}
	}
	set(c.Key != "", hasKey)
	set(len(c.Value) != 0, hasValue)
	set(c.Cond != 0, hasCond)
	set(c.Options != 0, hasOptions)
	set(c.TTL != 0, hasTTL)
	set(c.Delta != 0, hasDelta)
	set(len(c.Expect) != 0, hasExpect)
	set(c.Revision != 0, hasEquals)
	set(c.Lease != 0, hasLease)
	set(c.End != "", hasEnd)
	set(c.Limit != 0, hasLimit)
	set(len(c.Keys) != 0, hasKeys)
	set(len(c.Pairs) != 0, hasPairs)
	set(len(c.Guards) != 0, hasGuards)
	set(len(c.Commands) != 0, hasCommands)
	return f
}

// Append appends the binary form of c to b.
func (c *Command) Append(b []byte) []byte {
	f := c.fields()
	b = append(b, byte(c.Verb))
	b = appendUint(b, f)
	if f&hasKey != 0 {
		b = appendString(b, c.Key)
	}
	if f&hasValue != 0 {
		b = appendString(b, c.Value)
	}
	if f&hasCond != 0 {
		b = append(b, c.Cond)
	}
	if f&hasOptions != 0 {
		b = append(b, c.Options)
	}
	if f >= hasTTL {
		b = c.appendRare(b, f)
	}
	return b
}

func (c *Command) appendRare(b []byte, f uint64) []byte {
	if f&hasTTL != 0 {
		b = appendInt(b, c.TTL)
	}
	if f&hasDelta != 0 {
		b = appendInt(b, c.Delta)
	}
	if f&hasExpect != 0 {
		b = appendString(b, c.Expect)
	}
	if f&hasEquals != 0 {
		b = appendUint(b, c.Revision)
	}
	if f&hasLease != 0 {
		b = appendUint(b, c.Lease)
	}
	if f&hasEnd != 0 {
		b = appendString(b, c.End)
	}
	if f&hasLimit != 0 {
		b = appendUint(b, c.Limit)
	}
	if f&hasKeys != 0 {
		b = appendUint(b, uint64(len(c.Keys)))
		for _, key := range c.Keys {
			b = appendString(b, key)
		}
	}
	if f&hasPairs != 0 {
		b = appendPairs(b, c.Pairs)
	}
	if f&hasGuards != 0 {
		b = appendUint(b, uint64(len(c.Guards)))
		for i := range c.Guards {
			b = appendUint(appendString(b, c.Guards[i].Key), c.Guards[i].Revision)
		}
	}
	if f&hasCommands != 0 {
		b = appendUint(b, uint64(len(c.Commands)))
		for i := range c.Commands {
			b = c.Commands[i].Append(b)
		}
	}
	return b
}

func appendPairs(b []byte, pairs []Pair) []byte {
	b = appendUint(b, uint64(len(pairs)))
	for i := range pairs {
		b = appendString(b, pairs[i].Key)
		b = appendString(b, pairs[i].Value)
		b = appendUint(b, pairs[i].Revision)
	}
	return b
}

// Size returns the number of bytes that Append appends.
func (c *Command) Size() int {
	f := c.fields()
	n := 1 + sizeUint(f)
	for i, length := range [...]int{len(c.Key), len(c.Value), len(c.Expect), len(c.End)} {
		if f&[...]uint64{hasKey, hasValue, hasExpect, hasEnd}[i] != 0 {
			n += sizeString(length)
		}
	}
	for _, v := range [...]uint64{c.Revision, c.Lease, c.Limit} {
		if v != 0 {
			n += sizeUint(v)
		}
	}
	for _, v := range [...]int64{c.TTL, c.Delta} {
		if v != 0 {
			n += sizeInt(v)
		}
	}
	if f&hasCond != 0 {
		n++
	}
	if f&hasOptions != 0 {
		n++
	}
	for _, length := range [...]int{len(c.Keys), len(c.Pairs), len(c.Guards), len(c.Commands)} {
		if length != 0 {
			n += sizeUint(uint64(length))
		}
	}
	for _, key := range c.Keys {
		n += sizeString(len(key))
	}
	n += sizePairs(c.Pairs)
	for i := range c.Guards {
		n += sizeString(len(c.Guards[i].Key)) + sizeUint(c.Guards[i].Revision)
	}
	for i := range c.Commands {
		n += c.Commands[i].Size()
	}
	return n
}

func sizePairs(pairs []Pair) int {
	n := 0
	for i := range pairs {
		n += sizeString(len(pairs[i].Key)) + sizeString(len(pairs[i].Value)) + sizeUint(pairs[i].Revision)
	}
	return n
}

// ParseCommand decodes a command, the whole of b. Its strings are copies; Value, Expect and the
// pairs' values share b's memory. Validate checks whether it is valid.
func ParseCommand(b []byte) (Command, error) {
	var c Command
	err := c.decode(reader{b: b})
	return c, err
}

// Borrow decodes a command like ParseCommand, but allocates nothing for keys: they share b's
// memory, too. So no part of c, not even a key, may be used after b has changed: copy what is
// kept.
func (c *Command) Borrow(b []byte) error {
	return c.decode(reader{b: b, alias: true})
}

func (c *Command) decode(r reader) error {
	c.read(&r, 0)
	if err := r.end(); err != nil {
		return fmt.Errorf("decode command: %w", err)
	}
	return nil
}

func (c *Command) read(r *reader, depth int) {
	*c = Command{Verb: Verb(r.byte())}
	f := r.bitmap(commandFields)
	if f&hasKey != 0 {
		c.Key = r.presentString()
	}
	if f&hasValue != 0 {
		c.Value = r.presentBytes()
	}
	if f&hasCond != 0 {
		c.Cond = r.presentByte()
	}
	if f&hasOptions != 0 {
		c.Options = r.presentByte()
	}
	if f >= hasTTL {
		c.readRare(r, f, depth)
	}
}

func (c *Command) readRare(r *reader, f uint64, depth int) {
	if f&hasTTL != 0 {
		c.TTL = r.presentInt()
	}
	if f&hasDelta != 0 {
		c.Delta = r.presentInt()
	}
	if f&hasExpect != 0 {
		c.Expect = r.presentBytes()
	}
	if f&hasEquals != 0 {
		c.Revision = r.present()
	}
	if f&hasLease != 0 {
		c.Lease = r.present()
	}
	if f&hasEnd != 0 {
		c.End = r.presentString()
	}
	if f&hasLimit != 0 {
		c.Limit = r.present()
	}
	if f&hasKeys != 0 {
		n := r.count(MaxItems, 1)
		c.Keys = make([]string, 0, n)
		for range n {
			c.Keys = append(c.Keys, r.string())
		}
	}
	if f&hasPairs != 0 {
		c.Pairs = r.pairs(MaxItems)
	}
	if f&hasGuards != 0 {
		n := r.count(MaxItems, 2)
		c.Guards = make([]Guard, 0, n)
		for range n {
			c.Guards = append(c.Guards, Guard{Key: r.string(), Revision: r.uint()})
		}
	}
	if f&hasCommands != 0 {
		c.readCommands(r, depth)
	}
}

func (c *Command) readCommands(r *reader, depth int) {
	if depth > 0 {
		r.fail(errDepth)
		return
	}
	n := r.count(MaxItems, 2)
	// Memory is allocated for what was read, not for the announced length.
	c.Commands = make([]Command, 0, min(n, 16))
	for range n {
		var inner Command
		inner.read(r, depth+1)
		if r.err != nil {
			return
		}
		c.Commands = append(c.Commands, inner)
	}
}

// pairs reads a list of pairs.
func (r *reader) pairs(limit int) []Pair {
	n := r.count(limit, 3)
	pairs := make([]Pair, 0, n)
	for range n {
		pairs = append(pairs, Pair{Key: r.string(), Value: r.bytes(), Revision: r.uint()})
	}
	return pairs
}

var verbNames = [verbs + 1]string{
	"?", "Set", "Delete", "Increment", "Append", "Expire", "Persist", "SetMany", "DeleteRange", "Transaction",
	"LeaseGrant", "LeaseKeep", "LeaseRevoke", "Get", "Many", "Range", "Count", "TTL", "LeaseTTL",
}

const verbs = LeaseTTL

// String returns the name of the verb.
func (v Verb) String() string {
	if v == 0 || v > verbs {
		return "Verb(" + strconv.Itoa(int(v)) + ")"
	}
	return verbNames[v]
}

// IsWrite reports whether v changes the store and so goes through the log.
func (v Verb) IsWrite() bool {
	return v >= Set && v <= LeaseRevoke
}
