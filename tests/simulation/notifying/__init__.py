"""Real notifiers of three unlockers in virtual time, beside a store and recipients that fail."""
