package wire

// Footprint adds what c touches to f: Keys, Spans, Write and Timed accumulate, Blind and Fixed
// are those of the last command. f's keys share c's memory. c must be valid.
//
// A lease is not a key. Revoking one touches all keys, because the command does not say which
// are attached. Other commands for leases touch no key, and are not Fixed.
func (c *Command) Footprint(f *Footprint) {
	f.Write = f.Write || c.Verb.IsWrite()
	c.addKeys(f)
	f.Timed = f.Timed || c.timed()
	f.Blind = c.blind(c.Options&NoReply != 0)
	f.Fixed = c.fixed()
}

func (c *Command) addKeys(f *Footprint) {
	switch c.Verb {
	case Set, Increment, Append, Expire, Persist, Get, TTL:
		f.Keys = append(f.Keys, c.Key)
	case Delete, Many:
		f.Keys = append(f.Keys, c.Keys...)
	case SetMany:
		for i := range c.Pairs {
			f.Keys = append(f.Keys, c.Pairs[i].Key)
		}
	case DeleteRange, Range, Count:
		f.Spans = append(f.Spans, Span{c.Key, c.End})
	case LeaseRevoke:
		f.Spans = append(f.Spans, Span{})
	case Transaction:
		for i := range c.Guards {
			f.Keys = append(f.Keys, c.Guards[i].Key)
		}
		for i := range c.Commands {
			c.Commands[i].addKeys(f)
		}
	}
}

// timed reports whether c may create a key that expires.
func (c *Command) timed() bool {
	switch c.Verb {
	case Set:
		return c.TTL != 0 || c.Lease != 0 || c.Options&KeepTTL != 0
	case Expire:
		return true
	case Transaction:
		for i := range c.Commands {
			if c.Commands[i].timed() {
				return true
			}
		}
	}
	return false
}

// blind reports whether no client waits for the answer of c. silent says whether c, or its
// transaction, asks for none.
func (c *Command) blind(silent bool) bool {
	switch c.Verb {
	case Set:
		return c.Cond == Always && c.Options&ReturnOld == 0 && (c.Lease == 0 || silent)
	case SetMany:
		return c.Cond == Always
	case Delete, Expire:
		return silent && c.Cond == Always && c.Options&ReturnOld == 0
	case Increment, Append, Persist, DeleteRange:
		return silent
	case Transaction:
		for i := range c.Commands {
			if !c.Commands[i].blind(silent) {
				return false
			}
		}
		return silent && len(c.Guards) == 0
	}
	return false
}

// fixed reports whether the answer of c depends only on the keys that it touches, and not on
// its own revision, leases or the time.
func (c *Command) fixed() bool {
	switch c.Verb {
	case Set:
		return c.Lease == 0
	case Delete, Increment, Append, Expire, Persist, SetMany, DeleteRange:
		return true
	case Count:
		return true
	case Transaction:
		for i := range c.Commands {
			// The commands after it depend on whether that time has passed.
			if m := &c.Commands[i]; !m.fixed() || m.Options&Absolute != 0 && len(c.Commands) > 1 {
				return false
			}
		}
		return true
	}
	return false
}

// Overlaps reports whether some key is in both f and g. Two footprints conflict if they overlap
// and one of them writes. It compares all pairs: it is meant for short footprints.
func (f *Footprint) Overlaps(g *Footprint) bool {
	for _, key := range f.Keys {
		if g.Holds(key) {
			return true
		}
	}
	for _, span := range f.Spans {
		for _, key := range g.Keys {
			if span.Holds(key) {
				return true
			}
		}
		for _, other := range g.Spans {
			if span.overlaps(other) {
				return true
			}
		}
	}
	return false
}

// Holds reports whether f touches key.
func (f *Footprint) Holds(key string) bool {
	for _, k := range f.Keys {
		if k == key {
			return true
		}
	}
	for _, span := range f.Spans {
		if span.Holds(key) {
			return true
		}
	}
	return false
}

// Holds reports whether key lies within s.
func (s Span) Holds(key string) bool {
	return s.From <= key && (s.To == "" || key < s.To)
}

func (s Span) overlaps(o Span) bool {
	empty := s.To != "" && s.To <= s.From || o.To != "" && o.To <= o.From
	return !empty && (o.To == "" || s.From < o.To) && (s.To == "" || o.From < s.To)
}
