"""Training: one loop and one step for supervised training, variational inference, ensembles and SWAG.

``loop.run`` trains any ``loop.Trainable``; ``supervised.train`` trains a network.
"""
