package wire

import "fmt"

// MaxTTL is the longest time to live and the latest absolute time, in milliseconds: nanoseconds
// since 1970 fit 63 bits until the year 2262.
const MaxTTL = (1<<63 - 1) / 1_000_000

// permitted has the conditions and options of a verb.
type permitted struct{ conditions, options uint16 }

func conditions(list ...uint8) uint16 {
	var set uint16
	for _, c := range list {
		set |= 1 << c
	}
	return set
}

var rules = [verbs + 1]permitted{
	Set:         {conditions(Always, IfAbsent, IfPresent, IfRevision, IfValue), ReturnOld | KeepTTL | Absolute | NoReply},
	Delete:      {conditions(Always, IfRevision, IfValue), ReturnOld | NoReply},
	Increment:   {conditions(Always), NoReply},
	Append:      {conditions(Always), NoReply},
	Expire:      {conditions(Always, IfGreater, IfLess, IfNoTTL, IfTTL, IfValue), Absolute | NoReply | KeepTTL},
	Persist:     {conditions(Always), NoReply},
	SetMany:     {conditions(Always, IfAbsent), NoReply},
	DeleteRange: {conditions(Always), NoReply},
	Transaction: {conditions(Always), NoReply},
	LeaseGrant:  {conditions(Always), NoReply},
	LeaseKeep:   {conditions(Always), NoReply},
	LeaseRevoke: {conditions(Always), NoReply},
	Get:         {conditions(Always), KeysOnly},
	Many:        {conditions(Always), KeysOnly},
	Range:       {conditions(Always), Reverse | KeysOnly},
	Count:       {conditions(Always), 0},
	TTL:         {conditions(Always), Absolute},
	LeaseTTL:    {conditions(Always), KeysOnly},
}

// Validate returns an error, for the sender, if c cannot be executed. An empty key is a key
// like any other. Fields that the verb does not use may have any value.
func (c *Command) Validate() error {
	if n := c.Size(); n > MaxCommand {
		return fmt.Errorf("command of %d bytes, at most %d", n, MaxCommand)
	}
	return c.ValidateParsed()
}

// ValidateParsed is Validate for a command that was decoded from at most MaxCommand bytes.
func (c *Command) ValidateParsed() error {
	if c.Verb == 0 || c.Verb > verbs {
		return fmt.Errorf("unknown verb %d", c.Verb)
	}
	rule := &rules[c.Verb]
	if c.Cond > 15 || rule.conditions&(1<<c.Cond) == 0 {
		return fmt.Errorf("%v does not know condition %d", c.Verb, c.Cond)
	}
	if uint16(c.Options)&^rule.options != 0 {
		return fmt.Errorf("%v does not know options %#x", c.Verb, uint16(c.Options)&^rule.options)
	}
	if err := checkSizes(c.Key, c.Value); err != nil {
		return err
	}
	switch c.Verb {
	case Set:
		return c.validateSet()
	case Increment, Append, Get, Count:
		return nil
	default:
		return c.validateRest()
	}
}

func checkSizes(key string, value []byte) error {
	if len(key) > MaxKey {
		return fmt.Errorf("key of %d bytes, at most %d", len(key), MaxKey)
	}
	if len(value) > MaxValue {
		return fmt.Errorf("value of %d bytes, at most %d", len(value), MaxValue)
	}
	return nil
}

func (c *Command) validateSet() error {
	if c.TTL == 0 && c.Options&Absolute == 0 {
		return nil
	}
	if c.TTL <= 0 || c.TTL > MaxTTL {
		return fmt.Errorf("time to live of %d ms, must be within 1 and %d", c.TTL, int64(MaxTTL))
	}
	if c.Options&KeepTTL != 0 {
		return fmt.Errorf("%v cannot both keep and set a time to live", c.Verb)
	}
	return nil
}

func (c *Command) validateRest() error {
	switch c.Verb {
	case Expire:
		if c.TTL < -MaxTTL || c.TTL > MaxTTL {
			return fmt.Errorf("time to live of %d ms, at most %d either way", c.TTL, int64(MaxTTL))
		}
	case LeaseGrant:
		if c.TTL <= 0 || c.TTL > MaxTTL {
			return fmt.Errorf("lease of %d ms, must be within 1 and %d", c.TTL, int64(MaxTTL))
		}
	case Delete:
		if (c.Cond != Always || c.Options&ReturnOld != 0) && len(c.Keys) != 1 {
			return fmt.Errorf("%v under a condition or with its old value takes one key, not %d", c.Verb, len(c.Keys))
		}
	}
	for _, list := range [...]int{len(c.Keys), len(c.Pairs), len(c.Guards), len(c.Commands)} {
		if list > MaxItems {
			return fmt.Errorf("list of %d elements, at most %d", list, MaxItems)
		}
	}
	if err := checkSizes(c.End, nil); err != nil {
		return err
	}
	for _, key := range c.Keys {
		if err := checkSizes(key, nil); err != nil {
			return err
		}
	}
	for i := range c.Pairs {
		if err := checkSizes(c.Pairs[i].Key, c.Pairs[i].Value); err != nil {
			return err
		}
	}
	return c.validateTransaction()
}

func (c *Command) validateTransaction() error {
	for i := range c.Guards {
		if err := checkSizes(c.Guards[i].Key, nil); err != nil {
			return err
		}
	}
	for i := range c.Commands {
		inner := &c.Commands[i]
		if inner.Verb == Transaction || inner.Verb == LeaseGrant {
			return fmt.Errorf("%v inside a %v", inner.Verb, c.Verb)
		}
		if err := inner.ValidateParsed(); err != nil {
			return fmt.Errorf("command %d of %d: %w", i+1, len(c.Commands), err)
		}
	}
	return nil
}
