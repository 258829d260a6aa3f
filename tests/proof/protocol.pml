/* docs/protocol.md without its library: each transaction is one step (d_step), revisions are the
   order of the line. `python -m tests.proof.model` runs it. With -DBROKEN=n one comparison of one
   transaction is left out, and an assertion fails. */
#ifndef CLIENTS
#define CLIENTS 4
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef BROKEN
#define BROKEN 0
#endif
#define LEFT_OUT(n) (BROKEN == n)

byte holder;                /* of the key `uuid`: a client from 1 on; 0: there is none */
bool written;               /* the stamps, since the unlocker looked: stands for their revisions */
byte line[CLIENTS];         /* tickets, by their create revisions */
byte waiting;               /* how many */
bool has[CLIENTS + 1];      /* a ticket */
bool mark[CLIENTS + 1];     /* withdrawn, or removed: its uuid is used up */
bool late[CLIENTS + 1];     /* a take of its is under way, and arrives at any time */
bool removed[CLIENTS + 1];  /* here and below: what no transaction looks at */
bool gone[CLIENTS + 1];
bool dead[CLIENTS + 1];
byte faults, slot;

inline drop(who) {          /* its ticket goes */
    if
    :: has[who] ->
        slot = 0;
        do
        :: line[slot] != who -> slot++
        :: else -> break
        od;
        do
        :: slot + 1 < waiting -> line[slot] = line[slot + 1]; slot++
        :: else -> break
        od;
        waiting--; line[waiting] = 0; has[who] = false
    :: else
    fi
}

inline get(who) {
    assert(holder == 0);                            /* one holder */
    assert(waiting == 0 || line[0] == who);         /* in order */
    assert(!removed[who] && !gone[who]);            /* a uuid is used once */
    drop(who); holder = who; written = true
}

inline take_or_queue(who) {
    d_step {
        if
        :: mark[who] && !LEFT_OUT(1)
        :: else ->
            if
            :: holder == who || has[who]
            :: else ->
                if
                :: (holder == 0 || LEFT_OUT(2)) && (waiting == 0 || LEFT_OUT(3)) -> get(who)
                :: else -> line[waiting] = who; waiting++; has[who] = true
                fi
            fi
        fi
    }
}

inline claim(who) {
    d_step {
        if
        :: holder == 0 && ((has[who] && line[0] == who) || LEFT_OUT(4)) -> get(who)
        :: else
        fi
    }
}

inline unlock(who) {
    if
    :: holder == who || (holder != 0 && LEFT_OUT(5)) -> assert(holder == who); holder = 0
    :: else
    fi
}

inline withdraw(who) { d_step { unlock(who); drop(who); mark[who] = true; gone[who] = true } }

inline push(who) {
    d_step {
        if
        :: holder == who || (holder != 0 && LEFT_OUT(6)) -> assert(holder == who); written = true
        :: else
        fi
    }
}

#define fault faults < FAULTS -> faults++

active [CLIENTS] proctype Client() {
    byte me = _pid + 1;
    bool again;
    if
    :: true
    :: atomic { fault; late[me] = true; again = true }
    fi;
    take_or_queue(me);
    do
    :: holder == me -> break
    :: line[0] == me && holder == 0 -> claim(me)    /* between these two all may change */
    :: mark[me] -> goto over                        /* it was removed before it knew */
    :: holder != me && !has[me] && !mark[me] -> take_or_queue(me)
    :: me == 1 -> withdraw(me); goto over           /* one who gives up is enough */
    :: atomic { fault; dead[me] = true; goto over }
    od;
    if
    :: push(me)
    :: true
    :: atomic { fault; dead[me] = true; goto over }
    fi;
    d_step { unlock(me) };
    if
    :: again -> withdraw(me)                        /* a take may be out there still */
    :: else
    fi;
over: skip
}

active [CLIENTS] proctype Network() {
    byte me = _pid - CLIENTS + 1;
end: do
    :: atomic { late[me] -> late[me] = false; take_or_queue(me) }
    :: d_step { dead[me] && has[me] -> drop(me) }   /* its lease ends */
    :: atomic { has[me] && fault; drop(me) }        /* of one that was frozen, too */
    od
}

active proctype Unlocker() {
    byte seen;
end: do
    :: d_step { holder != 0 -> seen = holder; written = false };
        d_step {
            if
            :: holder == seen && (!written || LEFT_OUT(7)) ->
                assert(!written);                   /* no push is ignored */
                holder = 0; removed[seen] = true; mark[seen] = !LEFT_OUT(8)
            :: else
            fi;
            seen = 0; written = false
        }
    od
}

active proctype Judge() { timeout -> assert(holder == 0 && waiting == 0) }
